//! The rules of kinds against recordings and tables. One program, because each is linked with all that it uses.

mod golden;
mod golden_pods;
mod kind_rules;
mod kinds;
mod pod_rules;
mod recorded;
mod recordings;
