//! What fence agents say of themselves (`metadata`), and whether policies give them what they know: a parameter that is
//! spelled wrong is to be found when the policy is written, not when a node is lost.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::attempt::{Answer, Run};
use super::kinds::{FencingPolicy, PolicyStatus};
use super::parameters::{Allowed, Denied};

/// The action that asks for it.
pub const METADATA: &str = "metadata";
/// How long an agent may take over it; it reaches no device for that.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// An agent that did not say is asked again after this.
const AGAIN: SignedDuration = SignedDuration::from_mins(5);
/// What every agent takes, whether it says so or not.
const ALWAYS: [&str; 2] = ["action", "nodename"];

#[derive(Debug)]
enum Said {
    /// The names of its parameters.
    Parameters(BTreeSet<String>),
    /// It did not say, for this reason; since when.
    Nothing(String, Timestamp),
}

/// What is known of the agents that policies name.
#[derive(Debug, Default)]
pub struct Descriptions {
    asked: BTreeSet<String>,
    said: BTreeMap<String, Said>,
}

impl Descriptions {
    /// Which agents are to be asked now.
    pub fn wanted<'a>(
        &mut self,
        policies: impl IntoIterator<Item = &'a FencingPolicy>,
        allowed: &Allowed,
        now: Timestamp,
    ) -> Vec<Run> {
        let mut named: BTreeSet<&str> = policies.into_iter().flat_map(agents).collect();
        // What may not be run is not run for this either.
        named.retain(|agent| allowed.agent(agent).is_ok());
        self.said.retain(|agent, said| {
            let stale = matches!(said, Said::Nothing(_, at) if now.duration_since(*at) >= AGAIN);
            named.contains(agent.as_str()) && !stale
        });
        let mut runs = Vec::new();
        for agent in named {
            if !self.said.contains_key(agent) && self.asked.insert(agent.into()) {
                runs.push(Run {
                    fencing: String::new(),
                    attempt: 0,
                    agent: agent.into(),
                    action: METADATA,
                    parameters: BTreeMap::new(),
                    secret: None,
                    timeout: PATIENCE,
                });
            }
        }
        runs
    }

    pub fn answered(&mut self, agent: &str, answer: Answer, now: Timestamp) {
        self.asked.remove(agent);
        let said = match answer {
            Answer::Exited { code: 0, output } => match parameters(&output) {
                names if names.is_empty() => Err("its metadata names no parameters".to_string()),
                names => Ok(names),
            },
            Answer::Exited { code, .. } => Err(format!("metadata failed with code {code}")),
            Answer::TimedOut => Err(format!("metadata timed out after {} s", PATIENCE.as_secs())),
            Answer::Broken { why } => Err(why),
        };
        let said = said.map_or_else(|why| Said::Nothing(why, now), Said::Parameters);
        self.said.insert(agent.into(), said);
    }

    /// What the policy's status should say; `None` while an agent has not been asked yet.
    pub fn status(&self, policy: &FencingPolicy, allowed: &Allowed) -> Option<PolicyStatus> {
        let mut denied = BTreeSet::new();
        let mut unknown = BTreeSet::new();
        let mut silent = BTreeSet::new();
        for agent in policy.spec.levels.iter().flat_map(|level| &level.agents) {
            denied.extend(allowed.policy(agent).iter().map(Denied::to_string));
            if allowed.agent(&agent.agent).is_err() {
                continue;
            }
            match self.said.get(&agent.agent)? {
                Said::Nothing(why, _) => drop(silent.insert(format!("{}: {why}", agent.agent))),
                Said::Parameters(known) => {
                    let of_nodes = agent.node_parameters.values().flat_map(BTreeMap::keys);
                    let given = agent.parameters.keys().chain(of_nodes);
                    let odd = given.filter(|name| !known.contains(*name) && !ALWAYS.contains(&name.as_str()));
                    unknown.extend(odd.map(|name| format!("{}: {name}", agent.agent)));
                }
            }
        }
        let mut words: Vec<String> = denied.into_iter().collect();
        if !unknown.is_empty() {
            let all: Vec<&str> = unknown.iter().map(String::as_str).collect();
            words.push(format!(
                "parameters that their agents do not know: {}",
                all.join(", ")
            ));
        }
        if !silent.is_empty() {
            let all: Vec<&str> = silent.iter().map(String::as_str).collect();
            words.push(format!(
                "agents that do not say what they know: {}",
                all.join(", ")
            ));
        }
        Some(PolicyStatus {
            message: words.join("; "),
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
        // Not of `<parameters>`, and nothing of what is inside of it.
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

    fn says(code: i32, output: &str) -> Answer {
        Answer::Exited {
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
        let runs = known.wanted(&all, &allowed(), at(0));
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].agent.as_str(), runs[0].action), ("fence_t", "metadata"));
        assert!(known.wanted(&all, &allowed(), at(1)).is_empty(), "asked once");
        assert_eq!(known.status(&all[0], &allowed()), None);
        known.answered("fence_t", says(0, XML), at(2));
        let status = known.status(&all[0], &allowed()).unwrap();
        assert_eq!(status.unknown_parameters, ["fence_t: ipp", "fence_t: plugg"]);
        assert_eq!(
            status.message,
            "parameters that their agents do not know: fence_t: ipp, fence_t: plugg"
        );
        assert_eq!(status.observed_generation, Some(3));
    }

    #[test]
    fn s6_an_agent_that_does_not_say_is_named_and_asked_again() {
        for (answer, word) in [
            (
                Answer::Broken {
                    why: "cannot run it".into(),
                },
                "fence_t: cannot run it",
            ),
            (Answer::TimedOut, "timed out after 60 s"),
            (says(1, ""), "failed with code 1"),
            (says(0, "no xml"), "names no parameters"),
        ] {
            let all = [policy(json!([{"agent": "fence_t", "parameters": {"x": "1"}}]))];
            let mut known = Descriptions::default();
            known.wanted(&all, &allowed(), at(0));
            known.answered("fence_t", answer, at(0));
            let status = known.status(&all[0], &allowed()).unwrap();
            assert!(status.message.contains(word), "{}", status.message);
            assert!(status.unknown_parameters.is_empty());
            assert!(known.wanted(&all, &allowed(), at(299)).is_empty());
            assert_eq!(known.wanted(&all, &allowed(), at(300)).len(), 1);
        }
    }

    #[test]
    fn a_policy_whose_parameters_are_all_known_has_nothing_to_say() {
        let all = [policy(json!([{"agent": "fence_t", "parameters": {"ip": "1"}}]))];
        let mut known = Descriptions::default();
        known.wanted(&all, &allowed(), at(0));
        known.answered("fence_t", says(0, XML), at(0));
        assert_eq!(known.status(&all[0], &allowed()).unwrap().message, "");
    }

    #[test]
    fn a4_what_a_policy_may_not_say_stands_in_its_status_and_its_agent_is_not_run() {
        let all = [policy(json!([
            {"agent": "fence_t", "parameters": {"action": "status"}},
            {"agent": "fence_other", "parameters": {"ip": "1"}},
        ]))];
        let mut known = Descriptions::default();
        let runs = known.wanted(&all, &allowed(), at(0));
        assert_eq!(
            runs.iter().map(|r| r.agent.as_str()).collect::<Vec<_>>(),
            ["fence_t"]
        );
        known.answered("fence_t", says(0, XML), at(0));
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
