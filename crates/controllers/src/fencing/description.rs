//! The agents' own descriptions (action `metadata`), and whether policies name only parameters that they know: a misspelled
//! parameter has to be found when the policy is written, not when a node is lost.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::attempt::{AgentResult, Run};
use super::kinds::{FencingPolicy, PolicyStatus};
use super::parameters::{Allowed, Denied};

/// The action by which an agent prints its description.
pub const METADATA: &str = "metadata";
/// The timeout of that action, for which the agent contacts no device.
const METADATA_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// After a failure an agent is run again after this time.
const RETRY_AFTER: SignedDuration = SignedDuration::from_mins(5);
/// Parameters that every agent accepts, whether its description has them or not.
const COMMON_PARAMETERS: [&str; 2] = ["action", "nodename"];

#[derive(Debug)]
enum Metadata {
    /// The names of its parameters.
    Parameters(BTreeSet<String>),
    /// It failed, for this reason, at this time.
    Failed(String, Timestamp),
}

/// The descriptions of the agents that policies name.
#[derive(Debug, Default)]
pub struct Descriptions {
    running: BTreeSet<String>,
    known: BTreeMap<String, Metadata>,
}

impl Descriptions {
    /// The agents whose description has to be read now.
    pub fn due_runs<'a>(
        &mut self,
        policies: impl IntoIterator<Item = &'a FencingPolicy>,
        allowed: &Allowed,
        now: Timestamp,
    ) -> Vec<Run> {
        let mut named: BTreeSet<&str> = policies.into_iter().flat_map(agents).collect();
        // An agent that is not allowed is not run for this either.
        named.retain(|agent| allowed.agent(agent).is_ok());
        self.known.retain(|agent, metadata| {
            let stale = matches!(metadata, Metadata::Failed(_, at) if now.duration_since(*at) >= RETRY_AFTER);
            named.contains(agent.as_str()) && !stale
        });
        let mut runs = Vec::new();
        for agent in named {
            if !self.known.contains_key(agent) && self.running.insert(agent.into()) {
                runs.push(Run {
                    fencing: String::new(),
                    attempt: 0,
                    agent: agent.into(),
                    action: METADATA,
                    parameters: BTreeMap::new(),
                    secret: None,
                    timeout: METADATA_TIMEOUT,
                });
            }
        }
        runs
    }

    /// Records the output of an agent's `metadata`.
    pub fn record_result(&mut self, agent: &str, result: AgentResult, now: Timestamp) {
        self.running.remove(agent);
        let metadata = match result {
            AgentResult::Exited { code: 0, output } => match parameters(&output) {
                names if names.is_empty() => Err("its metadata names no parameters".to_string()),
                names => Ok(names),
            },
            AgentResult::Exited { code, .. } => Err(format!("metadata failed with code {code}")),
            AgentResult::TimedOut => Err(format!(
                "metadata timed out after {} s",
                METADATA_TIMEOUT.as_secs()
            )),
            AgentResult::Broken { why } => Err(why),
        };
        let metadata = metadata.map_or_else(|why| Metadata::Failed(why, now), Metadata::Parameters);
        self.known.insert(agent.into(), metadata);
    }

    /// The status of a policy; `None` while the description of an agent is missing.
    pub fn status(&self, policy: &FencingPolicy, allowed: &Allowed) -> Option<PolicyStatus> {
        let mut denied = BTreeSet::new();
        let mut unknown = BTreeSet::new();
        let mut silent = BTreeSet::new();
        for agent in policy.spec.levels.iter().flat_map(|level| &level.agents) {
            denied.extend(allowed.policy(agent).iter().map(Denied::to_string));
            if allowed.agent(&agent.agent).is_err() {
                continue;
            }
            match self.known.get(&agent.agent)? {
                Metadata::Failed(why, _) => drop(silent.insert(format!("{}: {why}", agent.agent))),
                Metadata::Parameters(known) => {
                    let of_nodes = agent.node_parameters.values().flat_map(BTreeMap::keys);
                    let given = agent.parameters.keys().chain(of_nodes);
                    let odd = given
                        .filter(|name| !known.contains(*name) && !COMMON_PARAMETERS.contains(&name.as_str()));
                    unknown.extend(odd.map(|name| format!("{}: {name}", agent.agent)));
                }
            }
        }
        let mut messages: Vec<String> = denied.into_iter().collect();
        if !unknown.is_empty() {
            let all: Vec<&str> = unknown.iter().map(String::as_str).collect();
            messages.push(format!(
                "parameters that their agents do not know: {}",
                all.join(", ")
            ));
        }
        if !silent.is_empty() {
            let all: Vec<&str> = silent.iter().map(String::as_str).collect();
            messages.push(format!(
                "agents that do not say what they know: {}",
                all.join(", ")
            ));
        }
        Some(PolicyStatus {
            message: messages.join("; "),
            unknown_parameters: unknown.into_iter().collect(),
            observed_generation: policy.metadata.generation,
        })
    }
}

fn agents(policy: &FencingPolicy) -> impl Iterator<Item = &str> {
    let agents = policy.spec.levels.iter().flat_map(|level| &level.agents);
    agents.map(|agent| agent.agent.as_str())
}

/// The names of all `<parameter name="…">` of an agent's XML.
fn parameters(xml: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for element in xml.split("<parameter").skip(1) {
        // Not of `<parameters>`, nor of its content.
        let Some(element) = element
            .split('>')
            .next()
            .filter(|e| e.starts_with(char::is_whitespace))
        else {
            continue;
        };
        for attribute in [" name=", "\tname=", "\nname="] {
            let Some((_, value)) = element.split_once(attribute) else {
                continue;
            };
            let mut letters = value.chars();
            if let Some(quote @ ('"' | '\'')) = letters.next()
                && let Some((name, _)) = letters.as_str().split_once(quote)
            {
                names.insert(name.to_string());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::at;

    const XML: &str = r#"<?xml version="1.0" ?>
<resource-agent name="fence_t" shortdesc="name=&quot;no&quot;" >
<parameters>
	<parameter name="ip" unique="0" required="1" obsoletes="ipaddr"><getopt mixed="-a" /><content type="string" /></parameter>
	<parameter unique='0' name='plug'>
		<shortdesc lang="en">name="nor this"</shortdesc>
	</parameter>
</parameters>
<actions><action name="on" /></actions>
</resource-agent>"#;

    fn policy(agents: Value) -> FencingPolicy {
        FencingPolicy {
            metadata: serde_json::from_value(json!({"name": "p", "generation": 3})).unwrap(),
            spec: serde_json::from_value(json!({"levels": [{"agents": agents}]})).unwrap(),
            ..FencingPolicy::default()
        }
    }

    /// The agent of these tests, which Debian does not have.
    fn allowed() -> Allowed {
        Allowed::parse("fence_t:ip,ipp,plugg,x").unwrap()
    }

    fn says(code: i32, output: &str) -> AgentResult {
        AgentResult::Exited {
            code,
            output: output.into(),
        }
    }

    #[test]
    fn s6_parameters_that_an_agent_does_not_know_are_named() {
        let policy = policy(json!([{"agent": "fence_t", "parameters": {"ip": "1", "ipp": "2"},
            "nodeParameters": {"n1": {"plug": "1"}, "n2": {"plugg": "2"}}}]));
        let mut known = Descriptions::default();
        let all = [policy];
        let runs = known.due_runs(&all, &allowed(), at(0));
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].agent.as_str(), runs[0].action), ("fence_t", "metadata"));
        assert!(known.due_runs(&all, &allowed(), at(1)).is_empty(), "run once");
        assert_eq!(known.status(&all[0], &allowed()), None);
        known.record_result("fence_t", says(0, XML), at(2));
        let status = known.status(&all[0], &allowed()).unwrap();
        assert_eq!(status.unknown_parameters, ["fence_t: ipp", "fence_t: plugg"]);
        assert_eq!(
            status.message,
            "parameters that their agents do not know: fence_t: ipp, fence_t: plugg"
        );
        assert_eq!(status.observed_generation, Some(3));
    }

    #[test]
    fn s6_an_agent_without_metadata_is_reported_and_run_again() {
        for (result, word) in [
            (
                AgentResult::Broken {
                    why: "cannot run it".into(),
                },
                "fence_t: cannot run it",
            ),
            (AgentResult::TimedOut, "timed out after 60 s"),
            (says(1, ""), "failed with code 1"),
            (says(0, "no xml"), "names no parameters"),
        ] {
            let all = [policy(json!([{"agent": "fence_t", "parameters": {"x": "1"}}]))];
            let mut known = Descriptions::default();
            known.due_runs(&all, &allowed(), at(0));
            known.record_result("fence_t", result, at(0));
            let status = known.status(&all[0], &allowed()).unwrap();
            assert!(status.message.contains(word), "{}", status.message);
            assert!(status.unknown_parameters.is_empty());
            assert!(known.due_runs(&all, &allowed(), at(299)).is_empty());
            assert_eq!(known.due_runs(&all, &allowed(), at(300)).len(), 1);
        }
    }

    #[test]
    fn a_policy_whose_parameters_are_all_known_has_an_empty_status() {
        let all = [policy(json!([{"agent": "fence_t", "parameters": {"ip": "1"}}]))];
        let mut known = Descriptions::default();
        known.due_runs(&all, &allowed(), at(0));
        known.record_result("fence_t", says(0, XML), at(0));
        assert_eq!(known.status(&all[0], &allowed()).unwrap().message, "");
    }

    #[test]
    fn a4_what_a_policy_may_not_name_is_in_its_status_and_its_agent_is_not_run() {
        let all = [policy(json!([
            {"agent": "fence_t", "parameters": {"action": "status"}},
            {"agent": "fence_other", "parameters": {"ip": "1"}},
        ]))];
        let mut known = Descriptions::default();
        let runs = known.due_runs(&all, &allowed(), at(0));
        assert_eq!(
            runs.iter().map(|r| r.agent.as_str()).collect::<Vec<_>>(),
            ["fence_t"]
        );
        known.record_result("fence_t", says(0, XML), at(0));
        let message = known.status(&all[0], &allowed()).unwrap().message;
        assert!(
            message.contains("fence_t: parameter \"action\" is not allowed"),
            "{message}"
        );
        assert!(
            message.contains("fence_other is not an allowed fence agent"),
            "{message}"
        );
    }
}
