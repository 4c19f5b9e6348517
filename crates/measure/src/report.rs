//! One self-contained HTML page from a [`Document`]: the machine drawn, a table and charts for every scenario, the verdicts, versions and
//! settings. No scripts, nothing loaded from anywhere (a content security policy in the page forbids both), light and dark by the
//! reader's preference, readable on a phone.

mod chart;

use std::fmt::{self, Write as _};

use serde_json::Value;

use crate::bar::Verdict;
use crate::rows::{Better, Cell, Document, InvalidDocument, Row};
use crate::table::{Centre, number};

const STYLE: &str = include_str!("report/style.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The machine, drawn by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing<'a> {
    /// Preformatted text, shown as it is.
    Text(&'a str),
    /// One `<svg>` element, put into the page as it is. See [`Report::to_html`] for what is refused.
    Svg(&'a str),
}

/// A page to be made.
#[derive(Debug, Clone)]
pub struct Report<'a> {
    document: &'a Document,
    title: String,
    drawing: Option<Drawing<'a>>,
    centre: Centre,
    highlight: Vec<String>,
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportError {
    /// The document is not in the common form.
    Document(InvalidDocument),
    /// The drawing is not a plain `<svg>` element; the part that is not.
    Drawing(String),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document(e) => e.fmt(f),
            Self::Drawing(what) => write!(
                f,
                "the drawing must be one <svg> element without scripts and links: {what}"
            ),
        }
    }
}

impl std::error::Error for ReportError {}

impl<'a> Report<'a> {
    /// A report of this document: means with their deviation, the setting `default` highlighted.
    pub fn new(document: &'a Document) -> Self {
        Self {
            document,
            title: document.tool.clone().unwrap_or_else(|| "Results".into()),
            drawing: None,
            centre: Centre::Mean,
            highlight: vec!["default".into()],
        }
    }

    /// The page's title; the document's tool unless given.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The machine, drawn.
    #[must_use]
    pub fn drawing(mut self, drawing: Drawing<'a>) -> Self {
        self.drawing = Some(drawing);
        self
    }

    /// Whether values are means with their deviation or medians with their range.
    #[must_use]
    pub fn centre(mut self, centre: Centre) -> Self {
        self.centre = centre;
        self
    }

    /// The settings whose bars stand out.
    #[must_use]
    pub fn highlight<S: Into<String>>(mut self, settings: impl IntoIterator<Item = S>) -> Self {
        self.highlight = settings.into_iter().map(Into::into).collect();
        self
    }

    /// The page.
    ///
    /// # Errors
    /// A document that is not valid; an SVG drawing that is not one `<svg>` element or has a script, an event attribute, a foreign
    /// object or a link.
    pub fn to_html(&self) -> Result<String, ReportError> {
        let json = self.document.to_json().map_err(ReportError::Document)?;
        let mut page = String::with_capacity(64 * 1024);
        let title = escape(&self.title);
        page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
        push(
            &mut page,
            format_args!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n"),
        );
        push(
            &mut page,
            format_args!(
                "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
            ),
        );
        self.machine(&mut page)?;
        self.verdicts(&mut page);
        for scenario in self.document.scenarios() {
            self.scenario(&mut page, scenario);
        }
        self.facts(&mut page);
        page.push_str("<details><summary>The same as JSON</summary><pre>");
        page.push_str(&escape(&json));
        page.push_str("</pre></details>\n</main>\n</body>\n</html>\n");
        Ok(page)
    }

    fn machine(&self, page: &mut String) -> Result<(), ReportError> {
        push(
            page,
            format_args!(
                "<p class=\"machine\">{}</p>\n",
                escape(&self.document.machine.line())
            ),
        );
        match self.drawing {
            None => {}
            Some(Drawing::Text(text)) => push(
                page,
                format_args!("<pre class=\"drawing\">{}</pre>\n", escape(text)),
            ),
            Some(Drawing::Svg(svg)) => {
                plain_svg(svg).map_err(ReportError::Drawing)?;
                push(
                    page,
                    format_args!("<div class=\"drawing\">{}</div>\n", svg.trim()),
                );
            }
        }
        Ok(())
    }

    fn verdicts(&self, page: &mut String) {
        let verdicts = &self.document.verdicts;
        if verdicts.is_empty() {
            return;
        }
        let count = |v| verdicts.iter().filter(|j| j.verdict == v).count();
        push(
            page,
            format_args!(
                "<h2>Bars</h2>\n<p>{} hold, {} fail, {} undecided. A bar holds when the bound on its dangerous side is within the limit.</p>\n",
                count(Verdict::Holds),
                count(Verdict::Fails),
                count(Verdict::Undecided)
            ),
        );
        page.push_str("<div class=\"scroll\"><table><thead><tr><th>Bar</th><th>Verdict</th><th class=\"n\">Measured</th>");
        page.push_str("<th class=\"n\">Bounds</th><th>Limit</th><th class=\"n\">Rounds</th></tr></thead><tbody>\n");
        for j in verdicts {
            let class = match j.verdict {
                Verdict::Holds => "holds",
                Verdict::Fails => "fails",
                Verdict::Undecided => "undecided",
            };
            let sign = if j.relation == crate::Relation::AtMost {
                "≤"
            } else {
                "≥"
            };
            let bounds = match (j.lower, j.upper) {
                (Some(l), Some(u)) => format!("{}..{}", j.shown(l), j.shown(u)),
                _ => "-".into(),
            };
            let against = j
                .against
                .as_ref()
                .map(|a| format!(" × {}", escape(a)))
                .unwrap_or_default();
            let reason = j
                .reason
                .as_ref()
                .map(|r| format!("<br><small>{}</small>", escape(r)))
                .unwrap_or_default();
            push(
                page,
                format_args!(
                    "<tr><td class=\"wide\">{}{reason}</td><td class=\"{class}\">{class}</td><td class=\"n\">{}</td><td class=\"n\">{bounds}</td><td>{sign} {}{against}</td><td class=\"n\">{}</td></tr>\n",
                    escape(&j.name),
                    j.estimate.map_or_else(|| "-".into(), |e| j.shown(e)),
                    j.shown(j.limit),
                    j.rounds
                ),
            );
        }
        page.push_str("</tbody></table></div>\n");
    }

    fn scenario(&self, page: &mut String, scenario: &str) {
        let rows: Vec<(&Row, Vec<Cell>)> = self
            .document
            .rows_of(scenario)
            .map(|r| (r, r.cells()))
            .collect();
        let mut heads: Vec<(&str, &str, Better)> = Vec::new();
        for cell in rows.iter().flat_map(|(_, cells)| cells) {
            if !heads
                .iter()
                .any(|(n, u, _)| *n == cell.name && *u == cell.unit)
            {
                heads.push((&cell.name, &cell.unit, cell.better));
            }
        }
        push(
            page,
            format_args!(
                "<h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr><th>Setting</th>",
                escape(scenario)
            ),
        );
        for (name, unit, _) in &heads {
            let unit = if unit.is_empty() {
                String::new()
            } else {
                format!("<br><small>{}</small>", escape(unit))
            };
            push(
                page,
                format_args!("<th class=\"n\">{}{unit}</th>", escape(name)),
            );
        }
        let notes = rows.iter().any(|(r, _)| r.error.is_some());
        page.push_str(if notes {
            "<th>Note</th></tr></thead><tbody>\n"
        } else {
            "</tr></thead><tbody>\n"
        });
        for (row, cells) in &rows {
            let class = if self.highlight.contains(&row.setting) {
                " class=\"ours\""
            } else {
                ""
            };
            push(
                page,
                format_args!("<tr{class}><th>{}</th>", escape(&row.setting)),
            );
            for (name, unit, _) in &heads {
                let cell = cells.iter().find(|c| c.name == *name && c.unit == *unit);
                let text = cell.map_or_else(|| "-".into(), |c| self.centre.show(&c.spread));
                push(page, format_args!("<td class=\"n\">{}</td>", escape(&text)));
            }
            if notes {
                push(
                    page,
                    format_args!(
                        "<td class=\"wide\">{}</td>",
                        escape(row.error.as_deref().unwrap_or(""))
                    ),
                );
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table></div>\n<div class=\"charts\">\n");
        for (name, unit, better) in heads {
            let bars: Vec<chart::Line<'_>> = rows
                .iter()
                .filter_map(|(row, cells)| {
                    let cell = cells.iter().find(|c| c.name == name && c.unit == unit)?;
                    let (value, low, high) = self.centre.range(&cell.spread);
                    let highlighted = self.highlight.contains(&row.setting);
                    Some(chart::Line {
                        label: &row.setting,
                        value,
                        low,
                        high,
                        highlighted,
                    })
                })
                .collect();
            page.push_str(&chart::bars(&chart::Chart {
                title: name,
                unit,
                better,
                lines: &bars,
                centre: self.centre,
            }));
        }
        page.push_str("</div>\n");
    }

    fn facts(&self, page: &mut String) {
        let document = self.document;
        let mut list = |title: &str, facts: &mut dyn Iterator<Item = (&String, String)>| {
            let facts: Vec<(&String, String)> = facts.collect();
            if facts.is_empty() {
                return;
            }
            push(page, format_args!("<h2>{title}</h2>\n<dl>\n"));
            for (name, value) in facts {
                push(
                    page,
                    format_args!(
                        "<div><dt>{}</dt><dd>{}</dd></div>\n",
                        escape(name),
                        escape(&value)
                    ),
                );
            }
            page.push_str("</dl>\n");
        };
        list(
            "Settings",
            &mut document.settings.iter().map(|(n, v)| (n, plain(v))),
        );
        list(
            "Versions",
            &mut document.versions.iter().map(|(n, v)| (n, v.clone())),
        );
        list(
            "Further results",
            &mut document.extras.iter().map(|(n, v)| (n, plain(v))),
        );
    }
}

/// A JSON value for people: text without quotes, lists with commas, objects as `name: value`.
fn plain(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(map) => {
            let member = |(n, v): (&String, &Value)| {
                let text = plain(v);
                if v.is_object() {
                    format!("{n} ({text})")
                } else {
                    format!("{n}: {text}")
                }
            };
            map.iter().map(member).collect::<Vec<_>>().join(", ")
        }
        Value::Number(n) => match (n.is_f64(), n.as_f64()) {
            (true, Some(v)) => number(v),
            _ => n.to_string(),
        },
        other => other.to_string(),
    }
}

/// Refuses everything in an SVG that could run, load or link.
fn plain_svg(svg: &str) -> Result<(), String> {
    let lower = svg.trim().to_ascii_lowercase();
    if !(lower.starts_with("<svg") && lower.ends_with("</svg>")) {
        return Err("it does not begin with <svg and end with </svg>".into());
    }
    for bad in [
        "<script",
        "<foreignobject",
        "<iframe",
        "<image",
        "<style",
        "href",
        "url(",
        "javascript:",
        "<!",
        "<?",
    ] {
        if lower.contains(bad) {
            return Err(format!("it contains {bad:?}"));
        }
    }
    // Attributes such as onload=: a word that begins with "on", with an equals sign right behind or after spaces.
    let mut rest = lower.as_str();
    while let Some(at) = rest.find("on") {
        let begins_word = rest[..at]
            .chars()
            .next_back()
            .is_none_or(|c| !c.is_alphanumeric());
        rest = &rest[at + 2..];
        if begins_word
            && rest
                .trim_start_matches(char::is_alphanumeric)
                .trim_start()
                .starts_with('=')
        {
            return Err("it has an event attribute".into());
        }
    }
    Ok(())
}

/// For text and for attribute values in double quotes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

fn push(page: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = page.write_fmt(text);
}

#[cfg(test)]
mod tests;
