//! Peers of rules: the pods that a selector matches, and the sets of addresses that are made of them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_apimachinery::labels::{Operator, Requirement, Selector};

use super::addresses::Ranges;
use crate::catalog::Protocol;

/// Labels of a pod or a namespace.
pub(super) type Labels = BTreeMap<String, String>;

/// A label selector with an order, so that rules with equal selectors find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matches(pub Selector);

fn rank(operator: Operator) -> u8 {
    match operator {
        Operator::Equals => 0,
        Operator::DoubleEquals => 1,
        Operator::NotEquals => 2,
        Operator::In => 3,
        Operator::NotIn => 4,
        Operator::Exists => 5,
        Operator::DoesNotExist => 6,
        Operator::GreaterThan => 7,
        Operator::LessThan => 8,
    }
}

impl Ord for Matches {
    fn cmp(&self, other: &Self) -> Ordering {
        fn key(requirement: &Requirement) -> (&str, u8, &[String]) {
            let operator = rank(requirement.operator());
            (requirement.key(), operator, requirement.values())
        }
        let own = self.0.requirements().iter().map(key);
        own.cmp(other.0.requirements().iter().map(key))
    }
}

impl PartialOrd for Matches {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Namespaces {
    /// The policy's own.
    One(Arc<str>),
    Matching(Matches),
}

/// Pods of some namespaces with some labels; never those in the host network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSelector {
    pub(super) namespaces: Namespaces,
    pub(super) pods: Matches,
}

impl PodSelector {
    /// `namespace_labels` is `None` for a namespace that is not known; selectors of namespaces do not match it.
    pub fn matches(
        &self,
        namespace: &str,
        namespace_labels: Option<&BTreeMap<String, String>>,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let is_in = match &self.namespaces {
            Namespaces::One(own) => **own == *namespace,
            Namespaces::Matching(selector) => {
                namespace_labels.is_some_and(|labels| selector.0.matches(Some(labels)))
            }
        };
        is_in && self.pods.0.matches(Some(labels))
    }
}

/// The pods that a named port refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    Everyone,
    Pods(Box<[Arc<PodSelector>]>),
    Blocks(Arc<Ranges>),
}

/// What a set contains. Rules of equal peers share a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetKey {
    /// Addresses of pods that any of the selectors matches.
    Pods(Box<[Arc<PodSelector>]>),
    Blocks(Arc<Ranges>),
    /// Addresses of pods with the number of their port of this name, and its protocol.
    NamedPort {
        whose: Whose,
        protocol: Protocol,
        name: Box<str>,
    },
}

impl SetKey {
    /// Whether pods have to be known for it.
    pub fn needs_pods(&self) -> bool {
        !matches!(self, SetKey::Blocks(_))
    }

    fn selectors(&self) -> Option<&[Arc<PodSelector>]> {
        match self {
            SetKey::Pods(selectors)
            | SetKey::NamedPort {
                whose: Whose::Pods(selectors),
                ..
            } => Some(selectors),
            _ => None,
        }
    }

    /// The only namespace whose pods it may contain.
    pub(super) fn only_namespace(&self) -> Option<&Arc<str>> {
        let selectors = self.selectors()?;
        let mut names = selectors.iter().map(|selector| match &selector.namespaces {
            Namespaces::One(name) => Some(name),
            Namespaces::Matching(_) => None,
        });
        let first = names.next()??;
        names.all(|name| name == Some(first)).then_some(first)
    }

    /// Whether pods with these labels belong to it (if their addresses do), for a set that needs pods.
    pub(super) fn matches(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        self.selectors().is_none_or(|selectors| {
            selectors
                .iter()
                .any(|selector| selector.matches(namespace, of_namespace, labels))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str) -> Matches {
        Matches(Selector::parse(selector).unwrap())
    }

    /// Of pods in this namespace, or in those that a selector matches.
    fn selector(namespace: Option<&str>) -> Arc<PodSelector> {
        Arc::new(PodSelector {
            namespaces: match namespace {
                Some(name) => Namespaces::One(name.into()),
                None => Namespaces::Matching(matches("team=red")),
            },
            pods: matches("a=b"),
        })
    }

    #[test]
    fn n6_a_set_is_of_one_namespace_if_all_its_selectors_are() {
        for (namespaces, only) in [
            (vec![Some("x")], Some("x")),
            (vec![Some("x"), Some("x")], Some("x")),
            (vec![Some("x"), Some("y")], None),
            (vec![Some("x"), None], None),
            (vec![None, Some("x")], None),
            (vec![None], None),
        ] {
            let selectors: Box<[Arc<PodSelector>]> = namespaces.iter().map(|name| selector(*name)).collect();
            let named = SetKey::NamedPort {
                whose: Whose::Pods(selectors.clone()),
                protocol: Protocol::Tcp,
                name: "web".into(),
            };
            for set in [SetKey::Pods(selectors), named] {
                assert_eq!(set.only_namespace().map(|name| &**name), only, "{namespaces:?}");
            }
        }
    }

    #[test]
    fn n6_blocks_are_sets_without_pods() {
        let blocks = Arc::new(Ranges::default());
        let named = SetKey::NamedPort {
            whose: Whose::Blocks(blocks.clone()),
            protocol: Protocol::Tcp,
            name: "web".into(),
        };
        assert!(!SetKey::Blocks(blocks).needs_pods());
        assert!(named.needs_pods(), "the number of the port is a pod's");
        assert!(SetKey::Pods([selector(None)].into()).needs_pods());
    }

    #[test]
    fn n6_selectors_are_ordered_by_their_requirements() {
        let ascending = ["a=b", "a=c", "a!=b", "b=a", "b=a,c=d"].map(matches);
        assert!(ascending.is_sorted(), "{ascending:?}");
    }
}
