//! Text tables for terminals and logs: columns padded to their widest cell, numbers to the right, no borders, so that they can
//! be cut and sorted by ordinary tools.

use crate::rows::{Cell, Row, Spread};

/// Side on which a column's cells end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table under construction.
#[derive(Debug, Clone)]
pub struct Table {
    heads: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads; the first column is text, the others are numbers.
    pub fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        let heads = heads
            .into_iter()
            .enumerate()
            .map(|(i, h)| (h.into(), if i == 0 { Align::Left } else { Align::Right }));
        Self {
            heads: heads.collect(),
            rows: Vec::new(),
        }
    }

    /// Sets a column's side. A column that does not exist is ignored.
    #[must_use]
    pub fn align(mut self, column: usize, align: Align) -> Self {
        if let Some(head) = self.heads.get_mut(column) {
            head.1 = align;
        }
        self
    }

    /// Adds a row. Missing cells are empty; cells beyond the last head stand in columns without one.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }

    /// The table of rows that share a scenario: one line a setting, one column a figure that any of them has; `-` where one
    /// lacks it, the error in the last column.
    pub fn of_rows<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        let rows: Vec<(&Row, Vec<Cell>)> = rows.into_iter().map(|r| (r, r.cells())).collect();
        let mut heads: Vec<(String, String)> = Vec::new();
        for cell in rows.iter().flat_map(|(_, cells)| cells) {
            let head = (cell.name.clone(), cell.unit.clone());
            if !heads.contains(&head) {
                heads.push(head);
            }
        }
        let titles = heads.iter().map(|(n, u)| {
            if u.is_empty() {
                n.clone()
            } else {
                format!("{n} [{u}]")
            }
        });
        let errors = rows.iter().any(|(r, _)| r.error.is_some());
        let mut table = Self::new(std::iter::once("setting".to_owned()).chain(titles));
        if errors {
            table.heads.push(("note".into(), Align::Left));
        }
        for (row, cells) in &rows {
            let mut line = vec![row.setting.clone()];
            line.extend(heads.iter().map(|(n, u)| {
                cells
                    .iter()
                    .find(|c| c.name == *n && c.unit == *u)
                    .map_or_else(|| "-".into(), |c| spread(&c.spread))
            }));
            line.extend(row.error.clone());
            table.row(line);
        }
        table
    }

    /// The text, each line with its newline, without trailing spaces.
    pub fn render(&self) -> String {
        let columns = self
            .rows
            .iter()
            .map(Vec::len)
            .chain([self.heads.len()])
            .max()
            .unwrap_or(0);
        let mut widths = vec![0; columns];
        let heads: Vec<&str> = self.heads.iter().map(|(h, _)| h.as_str()).collect();
        for (i, head) in heads.iter().enumerate() {
            widths[i] = width(head);
        }
        for row in &self.rows {
            for (i, cell) in row.iter().enumerate() {
                widths[i] = widths[i].max(width(cell));
            }
        }
        let mut text = String::new();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut out = String::new();
            for (i, cell) in cells.enumerate() {
                if i > 0 {
                    out.push_str("  ");
                }
                let pad = " ".repeat(widths[i].saturating_sub(width(cell)));
                let right = self.heads.get(i).is_some_and(|(_, a)| *a == Align::Right);
                if right {
                    out.push_str(&pad);
                }
                out.push_str(cell);
                if !right {
                    out.push_str(&pad);
                }
            }
            text.push_str(out.trim_end());
            text.push('\n');
        };
        line(&mut heads.iter().copied());
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str));
        }
        text
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render())
    }
}

/// Columns that a text takes, one a character: enough for the Latin letters, digits and signs printed here.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// A number at about four significant digits, never in exponent form below 10^15.
pub fn number(value: f64) -> String {
    digits(value, decimals(value))
}

fn digits(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text
        .trim_start_matches('-')
        .chars()
        .all(|c| c == '0' || c == '.')
    {
        text.trim_start_matches('-').to_owned() // no "-0.00"
    } else {
        text
    }
}

fn decimals(value: f64) -> usize {
    match value.abs() {
        v if v == 0.0 || !v.is_finite() => 0,
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.01 => 4,
        _ => 6,
    }
}

/// Which middle and which spread of a value over rounds is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Centre {
    /// Mean and standard deviation.
    #[default]
    Mean,
    /// Median and range; where a value has none, its mean.
    Median,
}

impl Centre {
    /// As text: [`spread`] or [`median_range`].
    pub fn show(self, s: &Spread) -> String {
        match self {
            Self::Mean => spread(s),
            Self::Median => median_range(s),
        }
    }

    /// Middle, and both ends of the spread: the mean less and plus one deviation, or the smallest and the largest.
    pub fn range(self, s: &Spread) -> (f64, f64, f64) {
        match self {
            Self::Mean => (s.mean, s.mean - s.stdev, s.mean + s.stdev),
            Self::Median => {
                let middle = s.median.unwrap_or(s.mean);
                (middle, s.min.unwrap_or(middle), s.max.unwrap_or(middle))
            }
        }
    }
}

/// A ratio or the bound of one: three decimals below 10, so that half a percent shows.
pub fn ratio(value: f64) -> String {
    if value.abs() < 10.0 {
        digits(value, 3)
    } else {
        number(value)
    }
}

/// `value ±spread`, both with so many decimals that the spread has two significant digits; without the spread where it is 0.
pub fn spread(s: &Spread) -> String {
    if s.stdev == 0.0 || !s.stdev.is_finite() {
        return number(s.mean);
    }
    let places = (1.0 - s.stdev.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{} ±{}", digits(s.mean, places), digits(s.stdev, places))
}

/// `median [min..max]`, falling back to the mean where a member is missing.
pub fn median_range(s: &Spread) -> String {
    let middle = number(s.median.unwrap_or(s.mean));
    match (s.min, s.max) {
        (Some(low), Some(high)) if low != high => {
            format!("{middle} [{}..{}]", number(low), number(high))
        }
        _ => middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_no_line_ends_in_spaces() {
        let mut t = Table::new(["pool", "ns", "note"]).align(2, Align::Left);
        t.row(["crossbeam", "30", "é"])
            .row(["x", "1234", ""])
            .row(["only"]);
        let text = t.render();
        assert_eq!(
            text,
            "pool         ns  note\ncrossbeam    30  é\nx          1234\nonly\n"
        );
    }

    #[test]
    fn numbers_keep_about_four_digits() {
        let shown: Vec<String> = [
            0.0,
            -0.0,
            1234.5,
            12345.6,
            123.45,
            12.345,
            0.5,
            0.001234,
            -3.25,
            f64::INFINITY,
        ]
        .map(number)
        .into();
        assert_eq!(
            shown,
            [
                "0", "0", "1234", "12346", "123.5", "12.35", "0.5000", "0.001234", "-3.25", "inf"
            ]
        );
        assert_eq!(digits(-0.0001, 2), "0.00");
    }

    #[test]
    fn a_spread_has_the_decimals_of_its_value() {
        let s = |mean, stdev| {
            spread(&Spread {
                mean,
                stdev,
                ..Spread::default()
            })
        };
        assert_eq!(s(1159.4, 1.34), "1159.4 ±1.3");
        assert_eq!(s(55.08, 0.29), "55.08 ±0.29");
        assert_eq!(s(1169.0, 0.55), "1169.00 ±0.55");
        assert_eq!(s(602_096.0, 1200.0), "602096 ±1200");
        assert_eq!(s(3.0, 0.0), "3.00");
        assert_eq!(
            (ratio(1.0049), ratio(12.345), ratio(-0.0001)),
            ("1.005".into(), "12.35".into(), "0.000".into())
        );
        assert_eq!(
            median_range(&Spread::of(&[1.0, 2.0, 4.0]).unwrap()),
            "2.00 [1.00..4.00]"
        );
        assert_eq!(median_range(&Spread::exact(2.0)), "2.00");
    }

    #[test]
    fn rows_make_one_line_a_setting_and_a_dash_for_what_is_missing() {
        let mut a = Row::new("s", "system").figure("threads", "", Spread::exact(3.0));
        a.bandwidth_mib_s = Some(Spread {
            mean: 1159.4,
            stdev: 1.34,
            ..Spread::default()
        });
        let mut b = Row::new("s", "cache");
        b.error = Some("killed".into());
        let text = Table::of_rows([&a, &b]).render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "setting  bandwidth [MiB/s]  threads  note");
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["system", "1159.4", "±1.3", "3.00"]
        );
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            ["cache", "-", "-", "killed"]
        );
    }

    #[test]
    fn a_row_longer_than_the_heads_is_kept() {
        let mut t = Table::new(["a"]);
        t.row(["1", "2"]);
        assert_eq!(t.render(), "a\n1  2\n");
    }
}
