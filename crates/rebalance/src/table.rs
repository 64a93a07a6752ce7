//! A plan as text: the moves in waves, the pods that stay, the violations before and after.

use std::fmt;

use crate::plan::{Change, Plan};

/// The columns of a table, as wide as their widest cell.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heads: &[&str]) -> Self {
        let heads = heads.iter().map(|head| head.to_string()).collect();
        Table { rows: vec![heads] }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}   "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn gain(change: &Change) -> String {
    format!("{} {} -> {}", change.constraint, change.before, change.after)
}

/// The three tables of a plan; those without rows are left out.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.moves.is_empty() {
            writeln!(f, "No pod is to be moved.")?;
        } else {
            let heads = ["WAVE", "POD", "FROM", "TO", "RULE", "GAIN"];
            let mut table = Table::new(&heads);
            for step in &self.moves {
                let gains: Vec<String> = step.changes.iter().map(gain).collect();
                table.rows.push(vec![
                    step.wave.to_string(),
                    step.pod.to_string(),
                    step.from.to_string(),
                    step.to.as_deref().unwrap_or("<deleted>").to_string(),
                    step.rule.to_string(),
                    gains.join("; "),
                ]);
            }
            table.write(f)?;
        }
        if !self.not_moved.is_empty() {
            writeln!(f)?;
            let mut table = Table::new(&["NOT MOVED", "NODE", "REASON", "MESSAGE"]);
            for pod in &self.not_moved {
                table.rows.push(vec![
                    pod.pod.to_string(),
                    pod.node.to_string(),
                    pod.reason.code().to_string(),
                    pod.reason.to_string(),
                ]);
            }
            table.write(f)?;
        }
        for (code, pods) in &self.not_listed {
            writeln!(f, "{pods} more pods stay: {code}")?;
        }
        if !self.violations.is_empty() {
            writeln!(f)?;
            let mut table = Table::new(&["VIOLATED", "BEFORE", "AFTER"]);
            for total in &self.violations {
                table.rows.push(vec![
                    total.constraint.to_string(),
                    total.before.to_string(),
                    total.after.to_string(),
                ]);
            }
            table.write(f)?;
        }
        if self.violations_not_listed > 0 {
            writeln!(f, "{} more rules are violated", self.violations_not_listed)?;
        }
        Ok(())
    }
}
