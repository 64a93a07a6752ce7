//! The policy in a namespace's labels: a level and a version each for the modes enforce, audit and warn.

use std::collections::BTreeMap;
use std::fmt;

use knarr_apimachinery::field::{ErrorList, Path};

/// The prefix of the labels: `pod-security.kubernetes.io/enforce`, `…/enforce-version`.
pub const LABELS: &str = "pod-security.kubernetes.io/";

/// From the least to the most restrictive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        })
    }
}

/// The Kubernetes version whose checks apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    Latest,
    /// Of 1.x.
    Minor(u32),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Latest => f.write_str("latest"),
            Version::Minor(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// A level as it was at a version: `restricted:latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// The policy of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Violations are denied.
    pub enforce: LevelVersion,
    /// Violations are recorded in the audit log.
    pub audit: LevelVersion,
    /// Violations are returned as warnings.
    pub warn: LevelVersion,
}

impl Default for Policy {
    fn default() -> Self {
        let anything = LevelVersion {
            level: Level::Privileged,
            version: Version::Latest,
        };
        Policy {
            enforce: anything,
            audit: anything,
            warn: anything,
        }
    }
}

impl Policy {
    /// The policy of the labels, and the errors in them. An invalid enforce label means `restricted`; invalid audit and warn labels
    /// mean `privileged`.
    pub fn of(labels: Option<&BTreeMap<String, String>>) -> (Self, ErrorList) {
        let mut policy = Policy::default();
        let mut errors = ErrorList::new();
        let Some(labels) = labels else {
            return (policy, errors);
        };
        let path = Path::new("metadata").child("labels");
        let mut read = |mode: &str, unreadable: Level, into: &mut LevelVersion| -> (Option<Level>, bool) {
            let mut named = None;
            let label = format!("{LABELS}{mode}");
            if let Some(value) = labels.get(&label) {
                named = level(value);
                into.level = named.unwrap_or(unreadable);
                if named.is_none() {
                    errors.invalid(
                        &path.key(&label),
                        value,
                        "must be one of privileged, baseline, restricted",
                    );
                }
            }
            let label = format!("{LABELS}{mode}-version");
            let text = labels.get(&label);
            if let Some(value) = text {
                let given = version(value);
                into.version = given.unwrap_or(Version::Latest);
                if given.is_none() {
                    errors.invalid(&path.key(&label), value, "must be \"latest\" or \"v1.x\"");
                }
            }
            (named, text.is_some())
        };
        let (enforced, _) = read("enforce", Level::Restricted, &mut policy.enforce);
        read("audit", Level::Privileged, &mut policy.audit);
        let (_, warns_of_version) = read("warn", Level::Privileged, &mut policy.warn);
        // Without a warn label the enforced level is warned of, too: for pod templates, which are not denied.
        if !labels.contains_key(&format!("{LABELS}warn"))
            && enforced.is_some_and(|enforced| enforced > policy.warn.level)
        {
            policy.warn.level = policy.enforce.level;
            if !warns_of_version {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }
}

fn level(text: &str) -> Option<Level> {
    let all = [Level::Privileged, Level::Baseline, Level::Restricted];
    all.into_iter().find(|level| level.to_string() == text)
}

fn version(text: &str) -> Option<Version> {
    if text == "latest" {
        return Some(Version::Latest);
    }
    let digits = text.strip_prefix("v1.")?;
    let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| canonical).map(Version::Minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_versions_must_be_known() {
        for (label, value, fine) in [
            ("enforce", "baseline", true),
            ("warn", "foo", false),
            ("audit", "", false),
            ("enforce-version", "latest", true),
            ("enforce-version", "v1.30", true),
            ("enforce-version", "v1.0", true),
            ("warn-version", "v1.03", false),
            ("warn-version", "v1.+3", false),
            ("warn-version", "v1.", false),
            ("audit-version", "1.30", false),
            ("other", "x", true),
        ] {
            let labels = BTreeMap::from([(format!("{LABELS}{label}"), value.to_string())]);
            assert_eq!(Policy::of(Some(&labels)).1.is_empty(), fine, "{label}={value}");
        }
    }

    #[test]
    fn the_enforced_level_is_warned_of_without_a_warn_label() {
        for (labels, enforce, warn, audit) in [
            (
                &[][..],
                "privileged:latest",
                "privileged:latest",
                "privileged:latest",
            ),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.20")][..],
                "baseline:v1.20",
                "baseline:v1.20",
                "privileged:latest",
            ),
            (
                &[("enforce", "restricted"), ("warn-version", "v1.30")],
                "restricted:latest",
                "restricted:v1.30",
                "privileged:latest",
            ),
            (
                &[
                    ("enforce", "restricted"),
                    ("warn", "baseline"),
                    ("audit", "restricted"),
                ],
                "restricted:latest",
                "baseline:latest",
                "restricted:latest",
            ),
            (
                &[("enforce", "no"), ("warn", "no"), ("audit", "no")],
                "restricted:latest",
                "privileged:latest",
                "privileged:latest",
            ),
        ] {
            let labels = labels
                .iter()
                .map(|(k, v)| (format!("{LABELS}{k}"), (*v).to_string()))
                .collect();
            let (policy, _) = Policy::of(Some(&labels));
            let found = [policy.enforce, policy.warn, policy.audit].map(|l| l.to_string());
            assert_eq!(found, [enforce, warn, audit], "{labels:?}");
        }
    }
}
