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

    /// Whether pods with these labels belong to it (if their addresses do).
    pub(super) fn matches(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        match self {
            SetKey::Blocks(_) => false,
            _ => match self.selectors() {
                Some(selectors) => selectors
                    .iter()
                    .any(|selector| selector.matches(namespace, of_namespace, labels)),
                None => true,
            },
        }
    }
}
