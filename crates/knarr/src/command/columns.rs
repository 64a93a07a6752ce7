//! Text tables, as commands print them.

/// Columns two spaces apart, each as wide as its widest cell; the last is not padded.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The first `most` names, and how many more there are.
pub fn some<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let shown = names
        .iter()
        .take(most)
        .map(S::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["POD", "NODE"], ["a-long-name", "n"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "POD          NODE\na-long-name  n\n");
    }

    #[test]
    fn of_many_names_some_are_shown() {
        let names = ["a", "b", "c"].map(String::from);
        assert_eq!(some(&names, 3), "a, b, c");
        assert_eq!(some(&names, 2), "a, b and 1 more");
    }
}
