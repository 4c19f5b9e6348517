//! One chart: horizontal bars, a line a setting, with whiskers for the spread. Drawn as inline SVG whose colours come from the page's style, so
//! that it follows light and dark.

use super::{escape, push};
use crate::rows::Better;
use crate::table::{Centre, number};

const WIDTH: f64 = 360.0;
const LABEL: f64 = 112.0;
const VALUE: f64 = 58.0;
const ROW: f64 = 20.0;
/// Positive values that differ by more than this are drawn on a logarithmic scale: the small ones would be invisible.
const LOG_ABOVE: f64 = 30.0;

/// One bar.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) label: &'a str,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) highlighted: bool,
}

/// A chart to be drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    pub(super) better: Better,
    pub(super) lines: &'a [Line<'a>],
    pub(super) centre: Centre,
}

/// From value to x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Includes every bar and whisker, and 0 on a linear scale.
    pub(super) fn of(lines: &[Line<'_>]) -> Self {
        let values = || lines.iter().flat_map(|l| [l.value, l.low, l.high]);
        let most = values().fold(0.0, f64::max);
        let least = values().fold(0.0, f64::min);
        let smallest = lines.iter().map(|l| l.value).fold(f64::INFINITY, f64::min);
        let log = smallest > 0.0 && most / smallest > LOG_ABOVE;
        if log {
            // A whole decade below the smallest, so that it still has a visible bar.
            let from = (smallest.log10() - 0.3).floor();
            return Self {
                from,
                to: most.log10().max(from + 1.0),
                log,
            };
        }
        Self {
            from: least,
            to: if most > least { most } else { least + 1.0 },
            log,
        }
    }

    /// Where a value lies, from 0 to 1; what is outside is drawn at the edge.
    pub(super) fn part(&self, value: f64) -> f64 {
        let v = if self.log {
            value.max(f64::MIN_POSITIVE).log10()
        } else {
            value
        };
        ((v - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn x(&self, value: f64) -> f64 {
        LABEL + self.part(value) * (WIDTH - LABEL - VALUE)
    }

    /// Where bars begin.
    fn origin(&self) -> f64 {
        if self.log { LABEL } else { self.x(0.0) }
    }
}

/// The chart as a `<figure>`; empty without lines, or when every value is 0.
pub(super) fn bars(chart: &Chart<'_>) -> String {
    let lines = chart.lines;
    if lines
        .iter()
        .all(|l| l.value == 0.0 && l.low == 0.0 && l.high == 0.0)
    {
        return String::new();
    }
    let scale = Scale::of(lines);
    let mut notes: Vec<&str> = Vec::new();
    match chart.better {
        Better::Higher => notes.push("more is better"),
        Better::Lower => notes.push("less is better"),
        Better::Neither => {}
    }
    if scale.log {
        notes.push("logarithmic");
    }
    if lines.iter().any(|l| l.low != l.high) {
        notes.push(match chart.centre {
            Centre::Mean => "mean ± standard deviation",
            Centre::Median => "median, whiskers from least to most",
        });
    }
    let unit = if chart.unit.is_empty() {
        String::new()
    } else {
        format!(" [{}]", escape(chart.unit))
    };
    let title = escape(chart.title);
    let height = ROW * lines.len() as f64 + 4.0;
    let mut out = String::new();
    push(
        &mut out,
        format_args!(
            "<figure><figcaption>{title}{unit}<small>{}</small></figcaption>\n",
            notes.join(", ")
        ),
    );
    push(
        &mut out,
        format_args!(
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}: bar chart, values in the table above\">\n"
        ),
    );
    let origin = scale.origin();
    push(
        &mut out,
        format_args!(
            "<line class=\"axis\" x1=\"{origin:.1}\" y1=\"0\" x2=\"{origin:.1}\" y2=\"{height:.0}\"/>\n"
        ),
    );
    for (i, line) in lines.iter().enumerate() {
        let top = ROW * i as f64 + 2.0;
        let middle = top + ROW / 2.0 - 1.0;
        let end = scale.x(line.value);
        let (left, width) = (origin.min(end), (origin - end).abs().max(0.8));
        let class = if line.highlighted { "bar ours" } else { "bar" };
        push(
            &mut out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LABEL - 6.0,
                middle + 4.0,
                escape(&short(line.label))
            ),
        );
        push(
            &mut out,
            format_args!(
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                ROW - 5.0
            ),
        );
        if line.low != line.high {
            let (low, high) = (scale.x(line.low), scale.x(line.high));
            push(
                &mut out,
                format_args!(
                    "<path class=\"whisker\" d=\"M{low:.1} {a:.1}V{b:.1}M{low:.1} {middle:.1}H{high:.1}M{high:.1} {a:.1}V{b:.1}\"/>",
                    a = middle - 3.0,
                    b = middle + 3.0
                ),
            );
        }
        push(
            &mut out,
            format_args!(
                "<text class=\"value\" x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                middle + 4.0,
                number(line.value)
            ),
        );
    }
    out.push_str("</svg></figure>\n");
    out
}

/// A label that fits: about 18 characters of the chart's font.
fn short(label: &str) -> String {
    const MOST: usize = 18;
    if label.chars().count() <= MOST {
        return label.to_owned();
    }
    label.chars().take(MOST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: f64) -> Line<'static> {
        Line {
            label: "x",
            value,
            low: value,
            high: value,
            highlighted: false,
        }
    }

    fn chart(lines: &[Line<'_>]) -> String {
        bars(&Chart {
            title: "t",
            unit: "ns",
            better: Better::Lower,
            lines,
            centre: Centre::Mean,
        })
    }

    #[test]
    fn a_linear_scale_starts_at_zero_and_ends_at_the_longest_whisker() {
        let s = Scale::of(&[
            Line {
                high: 12.0,
                ..line(10.0)
            },
            line(5.0),
        ]);
        assert_eq!((s.part(0.0), s.part(6.0), s.part(12.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn negative_values_go_left_of_zero() {
        let s = Scale::of(&[line(-10.0), line(30.0)]);
        assert_eq!((s.part(-10.0), s.part(0.0), s.part(30.0)), (0.0, 0.25, 1.0));
    }

    #[test]
    fn values_of_very_different_size_get_a_logarithmic_scale() {
        let s = Scale::of(&[line(10.0), line(10_000.0)]);
        assert!(s.log);
        assert!(s.part(10.0) > 0.05 && s.part(10_000.0) == 1.0, "{s:?}");
        assert!(chart(&[line(10.0), line(10_000.0)]).contains("logarithmic"));
        assert!(
            !Scale::of(&[line(0.0), line(10_000.0)]).log,
            "0 has no logarithm"
        );
    }

    #[test]
    fn a_chart_of_zeros_or_nothing_is_left_out() {
        assert_eq!(chart(&[]), "");
        assert_eq!(chart(&[line(0.0)]), "");
    }

    #[test]
    fn whiskers_are_drawn_only_where_there_is_a_spread() {
        assert!(!chart(&[line(3.0)]).contains("class=\"whisker\""));
        let with = chart(&[Line {
            low: 2.0,
            high: 4.0,
            ..line(3.0)
        }]);
        assert!(with.contains("class=\"whisker\"") && with.contains("standard deviation"));
    }

    #[test]
    fn labels_are_escaped_and_cut() {
        let text = chart(&[
            Line {
                label: "<b>&",
                ..line(1.0)
            },
            Line {
                label: "a-very-long-name-of-a-setting",
                ..line(1.0)
            },
        ]);
        assert!(text.contains("&lt;b&gt;&amp;") && !text.contains("<b>"));
        assert!(text.contains("a-very-long-name-…"));
    }
}
