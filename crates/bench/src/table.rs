//! Tables on a terminal: columns of text, and numbers with three digits.

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Lines with two spaces before each column. A row may have fewer cells than there are columns.
pub fn lines(rows: &[Vec<String>], columns: &[Align]) -> String {
    let widths: Vec<usize> = (0..columns.len())
        .map(|i| {
            let cells = rows.iter().filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, width), align) in row.iter().zip(&widths).zip(columns) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            line += "  ";
            line += &match align {
                Align::Left => format!("{cell}{pad}"),
                Align::Right => format!("{pad}{cell}"),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// More than three significant digits are not reproducible on a shared host.
pub fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => {
            let digits = format!("{v:.0}");
            let mut out = String::new();
            for (i, c) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i) % 3 == 0 && !out.ends_with('-') {
                    out.push(' ');
                }
                out.push(c);
            }
            out
        }
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 0.1 || a == 0.0 => format!("{v:.2}"),
        a if a >= 0.001 => format!("{v:.4}"),
        _ => format!("{v:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.25, "0.25"),
            (0.012_34, "0.0123"),
            (0.000_012_3, "1.2e-5"),
            (12.34, "12.3"),
            (123.4, "123"),
            (123_456.0, "123 456"),
            (-123_456.0, "-123 456"),
            (-123.0, "-123"),
            (1_234_567.0, "1 234 567"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: &[&str]| cells.iter().map(|c| c.to_string()).collect::<Vec<_>>();
        let rows = [row(&["", "µs", "x"]), row(&["long", "10"])];
        let text = lines(&rows, &[Align::Left, Align::Right, Align::Left]);
        assert_eq!(text, "        µs  x\n  long  10\n");
    }
}
