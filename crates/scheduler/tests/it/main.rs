//! The scheduler on clusters, recorded and random. One program, because each is linked with all that it uses.

mod cluster;
mod cross_node_nominations;
mod cross_node_preemption;
mod golden;
mod hard_budgets;
mod histories;
