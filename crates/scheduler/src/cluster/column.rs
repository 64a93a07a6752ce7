//! One topology key in the snapshot: the values that nodes have as its label, as small numbers.

use std::collections::BTreeMap;

use super::{NO_VALUE, NodeIndex};
use crate::node_info::NodeInfo;

/// The values of one topology key (node label), numbered.
#[derive(Clone, Debug, Default)]
pub struct Column {
    pub key: String,
    numbers: BTreeMap<String, u32>,
    at: Vec<u32>,
}

impl Column {
    /// The number of the node's value, or [`NO_VALUE`].
    pub fn at(&self, index: NodeIndex) -> u32 {
        self.at.get(index as usize).copied().unwrap_or(NO_VALUE)
    }

    /// The numbers of all nodes' values, by node index.
    pub fn all(&self) -> &[u32] {
        &self.at
    }

    /// How many different values there have been.
    pub fn values(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn of_key(key: &str) -> Self {
        Column {
            key: key.to_string(),
            ..Column::default()
        }
    }

    /// The number of a value, which need not be that of a node.
    pub(super) fn number_of(&mut self, value: &str) -> u32 {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(NO_VALUE);
        self.numbers.insert(value.to_string(), next);
        next
    }

    pub(super) fn set(&mut self, index: NodeIndex, node: &NodeInfo) {
        let value = node.label(&self.key);
        let number = value.map_or(NO_VALUE, |value| self.number_of(value));
        let index = index as usize;
        if self.at.len() <= index {
            self.at.resize(index + 1, NO_VALUE);
        }
        self.at[index] = number;
    }
}
