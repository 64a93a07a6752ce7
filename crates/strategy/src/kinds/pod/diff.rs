//! Unified diffs of texts, line by line, with the same result as Python's difflib: the error of a forbidden pod update
//! contains such a diff, which Kubernetes makes with a Go port of difflib.

use std::collections::BTreeMap;

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;
/// In texts with at least this many lines, very frequent lines do not start a match (difflib's autojunk).
const POPULAR_FROM: usize = 200;

/// A sequence of lines that both texts have.
#[derive(Clone, Copy)]
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

#[derive(Clone, Copy)]
struct Change {
    equal: bool,
    a: (usize, usize),
    b: (usize, usize),
}

struct Matcher<'t> {
    a: Vec<&'t str>,
    b: Vec<&'t str>,
    /// The indexes of each line in `b`, without the popular lines.
    lines_of_b: BTreeMap<&'t str, Vec<usize>>,
}

impl<'t> Matcher<'t> {
    fn new(a: &'t str, b: &'t str) -> Self {
        let (a, b): (Vec<&str>, Vec<&str>) = (a.split('\n').collect(), b.split('\n').collect());
        let mut lines_of_b: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (j, line) in b.iter().enumerate() {
            lines_of_b.entry(line).or_default().push(j);
        }
        if b.len() >= POPULAR_FROM {
            let often = b.len() / 100 + 1;
            lines_of_b.retain(|_, at| at.len() <= often);
        }
        Matcher { a, b, lines_of_b }
    }

    fn longest(&self, (a_low, a_high): (usize, usize), (b_low, b_high): (usize, usize)) -> Match {
        let mut best = Match {
            a: a_low,
            b: b_low,
            len: 0,
        };
        // By line of b: the length of the match that ends with it and the current line of a.
        let mut run_lengths: BTreeMap<usize, usize> = BTreeMap::new();
        for i in a_low..a_high {
            let mut next = BTreeMap::new();
            for &j in self.lines_of_b.get(self.a[i]).into_iter().flatten() {
                if j < b_low {
                    continue;
                }
                if j >= b_high {
                    break;
                }
                let len = 1 + j
                    .checked_sub(1)
                    .and_then(|j| run_lengths.get(&j))
                    .copied()
                    .unwrap_or(0);
                next.insert(j, len);
                if len > best.len {
                    best = Match {
                        a: i + 1 - len,
                        b: j + 1 - len,
                        len,
                    };
                }
            }
            run_lengths = next;
        }
        while best.a > a_low && best.b > b_low && self.a[best.a - 1] == self.b[best.b - 1] {
            best = Match {
                a: best.a - 1,
                b: best.b - 1,
                len: best.len + 1,
            };
        }
        while best.a + best.len < a_high
            && best.b + best.len < b_high
            && self.a[best.a + best.len] == self.b[best.b + best.len]
        {
            best.len += 1;
        }
        best
    }

    /// All matches in order; in each section the longest match is found first.
    fn matches(&self) -> Vec<Match> {
        let mut found = Vec::new();
        let mut stretches = vec![((0, self.a.len()), (0, self.b.len()))];
        while let Some((a, b)) = stretches.pop() {
            let best = self.longest(a, b);
            if best.len == 0 {
                continue;
            }
            found.push(best);
            if a.0 < best.a && b.0 < best.b {
                stretches.push(((a.0, best.a), (b.0, best.b)));
            }
            let (a_end, b_end) = (best.a + best.len, best.b + best.len);
            if a_end < a.1 && b_end < b.1 {
                stretches.push(((a_end, a.1), (b_end, b.1)));
            }
        }
        found.sort_unstable_by_key(|m| (m.a, m.b));
        let mut joined: Vec<Match> = Vec::new();
        for m in found {
            match joined.last_mut() {
                Some(last) if last.a + last.len == m.a && last.b + last.len == m.b => last.len += m.len,
                _ => joined.push(m),
            }
        }
        joined
    }

    fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let (mut i, mut j) = (0, 0);
        let end = Match {
            a: self.a.len(),
            b: self.b.len(),
            len: 0,
        };
        for m in self.matches().into_iter().chain([end]) {
            if i < m.a || j < m.b {
                changes.push(Change {
                    equal: false,
                    a: (i, m.a),
                    b: (j, m.b),
                });
            }
            (i, j) = (m.a + m.len, m.b + m.len);
            if m.len > 0 {
                changes.push(Change {
                    equal: true,
                    a: (m.a, i),
                    b: (m.b, j),
                });
            }
        }
        changes
    }

    /// Changes with their context lines; distant changes are in separate groups (hunks).
    fn groups(&self) -> Vec<Vec<Change>> {
        let mut changes = self.changes();
        if let Some(first) = changes.first_mut().filter(|c| c.equal) {
            first.a.0 = first.a.0.max(first.a.1.saturating_sub(CONTEXT));
            first.b.0 = first.b.0.max(first.b.1.saturating_sub(CONTEXT));
        }
        if let Some(last) = changes.last_mut().filter(|c| c.equal) {
            last.a.1 = last.a.1.min(last.a.0 + CONTEXT);
            last.b.1 = last.b.1.min(last.b.0 + CONTEXT);
        }
        let mut groups = Vec::new();
        let mut group = Vec::new();
        for change in changes {
            if change.equal && change.a.1 - change.a.0 > 2 * CONTEXT {
                group.push(Change {
                    equal: true,
                    a: (change.a.0, change.a.0 + CONTEXT),
                    b: (change.b.0, change.b.0 + CONTEXT),
                });
                groups.push(std::mem::take(&mut group));
                group.push(Change {
                    equal: true,
                    a: (change.a.1 - CONTEXT, change.a.1),
                    b: (change.b.1 - CONTEXT, change.b.1),
                });
            } else {
                group.push(change);
            }
        }
        groups.push(group);
        groups.retain(|g| g.iter().any(|c| !c.equal));
        groups
    }
}

/// `start,length` of a range, counted from one.
fn range((start, end): (usize, usize)) -> String {
    match end - start {
        1 => format!("{}", start + 1),
        0 => format!("{start},0"),
        length => format!("{},{length}", start + 1),
    }
}

/// The unified diff of two texts; empty if they are equal.
pub(super) fn unified(old: &str, new: &str) -> String {
    let matcher = Matcher::new(old, new);
    let mut out = String::new();
    for group in matcher.groups() {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        out.push_str(&format!(
            "@@ -{} +{} @@\n",
            range((first.a.0, last.a.1)),
            range((first.b.0, last.b.1))
        ));
        for change in group {
            let old = &matcher.a[change.a.0..change.a.1];
            let new = &matcher.b[change.b.0..change.b.1];
            let (kept, removed, added): (&[&str], &[&str], &[&str]) = if change.equal {
                (old, &[], &[])
            } else {
                (&[], old, new)
            };
            for (mark, lines) in [(' ', kept), ('-', removed), ('+', added)] {
                for line in lines {
                    out.push(mark);
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::unified;

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(unified("a\nb", "a\nb"), "");
    }

    #[test]
    fn distant_changes_are_grouped_apart() {
        let old: Vec<String> = (0..20).map(|i| i.to_string()).collect();
        let mut new = old.clone();
        new[1] = "x".into();
        new.remove(15);
        assert_eq!(
            unified(&old.join("\n"), &new.join("\n")),
            "@@ -1,5 +1,5 @@\n 0\n-1\n+x\n 2\n 3\n 4\n@@ -13,7 +13,6 @@\n 12\n 13\n 14\n-15\n 16\n 17\n 18\n"
        );
    }
}
