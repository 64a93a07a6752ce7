//! A pod's start and end as steps with their times, from spans and events. Pure.

use std::collections::BTreeMap;

/// Nanoseconds since 1970, by the host's clock, which all sources share.
pub type Nanos = i64;

/// A finished span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub id: Vec<u8>,
    pub parent: Vec<u8>,
    pub name: String,
    pub begin: Nanos,
    pub end: Nanos,
    pub attributes: BTreeMap<String, String>,
}

impl Span {
    fn is(&self, key: &str, value: &str) -> bool {
        self.attributes.get(key).is_some_and(|v| v == value)
    }

    /// Of a request: whether a node made it.
    fn is_of_node(&self) -> bool {
        let user = self.attributes.get("user");
        user.is_some_and(|user| user.starts_with("system:node:"))
    }
}

/// An event of containerd about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvent {
    /// `/tasks/create`, `/tasks/start`, `/tasks/exit`.
    pub topic: String,
    pub at: Nanos,
}

/// What the client did and saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    pub name: String,
    pub uid: String,
    /// The request to create it was sent.
    pub created: Nanos,
    /// The watch showed it Running.
    pub running: Nanos,
    /// The request to delete it was sent.
    pub deleted: Nanos,
    /// The watch showed its deletion.
    pub gone: Nanos,
}

/// One step of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub name: &'static str,
    /// Steps of depth 1 are parts of the step of depth 0 before them.
    pub depth: usize,
    pub begin: Nanos,
    pub end: Nanos,
}

/// One pod's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    pub start: Vec<Step>,
    pub end: Vec<Step>,
    pub marks: Marks,
}

/// A step without which the way is not complete: its span has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the span of the step {0:?} did not arrive")]
pub struct MissingSpan(&'static str);

/// The steps of both ways.
pub fn trace(marks: &Marks, spans: &[Span], events: &[TaskEvent]) -> Result<Traced, MissingSpan> {
    let of = Of { marks, spans, events };
    Ok(Traced {
        start: of.start()?,
        end: of.end()?,
        marks: marks.clone(),
    })
}

struct Of<'a> {
    marks: &'a Marks,
    spans: &'a [Span],
    events: &'a [TaskEvent],
}

fn step(name: &'static str, begin: Nanos, end: Nanos) -> Step {
    Step {
        name,
        depth: 0,
        // What follows an answer may begin before the answer is sent.
        begin: begin.min(end),
        end,
    }
}

fn part(name: &'static str, begin: Nanos, end: Nanos) -> Step {
    Step {
        depth: 1,
        ..step(name, begin, end)
    }
}

impl<'a> Of<'a> {
    /// The first span, not before, for which it holds.
    fn first_that(&self, from: Nanos, is: impl Fn(&Span) -> bool) -> Option<&'a Span> {
        let all = self.spans.iter().filter(|s| s.begin >= from && is(s));
        all.min_by_key(|s| s.begin)
    }

    /// The same of this name.
    fn first(&self, name: &str, from: Nanos, is: impl Fn(&Span) -> bool) -> Option<&'a Span> {
        self.first_that(from, |s| s.name == name && is(s))
    }

    /// The pod's first span of this name, not before.
    fn own(&self, name: &str, from: Nanos) -> Option<&'a Span> {
        self.first(name, from, |s| s.is("uid", &self.marks.uid))
    }

    /// The first request about pods. Requests have the names of their paths; only they have verbs.
    fn request(&self, verb: &str, from: Nanos, is: impl Fn(&Span) -> bool) -> Option<&'a Span> {
        self.first_that(from, |s| s.is("verb", verb) && s.is("resource", "pods") && is(s))
    }

    fn is_named(&self, span: &Span) -> bool {
        span.is("name", &self.marks.name)
    }

    /// Adds a step of one span, if there is one.
    fn add(&self, steps: &mut Vec<Step>, name: &'static str, span: &str, from: Nanos) {
        if let Some(span) = self.own(span, from) {
            steps.push(step(name, span.begin, span.end));
        }
    }

    /// The call of containerd that was made in a span.
    fn call(&self, within: &Span, name: &str) -> Option<&'a Span> {
        self.first(name, within.begin, |s| s.parent == within.id)
    }

    fn event(&self, topic: &str, within: &Span) -> Option<Nanos> {
        let all = self.events.iter().filter(|e| e.topic == topic);
        all.map(|e| e.at)
            .find(|at| (within.begin..=within.end).contains(at))
    }

    /// Parts of a call in which a process is started: `from` is what came before it.
    fn processes(&self, steps: &mut Vec<Step>, call: &Span, from: Nanos, created: &'static str) {
        let Some(create) = self.event("/tasks/create", call) else {
            return;
        };
        steps.push(part(created, from, create));
        if let Some(start) = self.event("/tasks/start", call) {
            steps.push(part("runtime start", create, start));
            steps.push(part("answer", start, call.end));
        }
    }

    fn network(&self, steps: &mut Vec<Step>, command: &str, call: &Span) -> Option<Nanos> {
        let of_pod = |s: &Span| s.is("command", command) && s.is("pod", &self.marks.name);
        let network = self
            .first("cni", call.begin, of_pod)
            .filter(|s| s.end <= call.end)?;
        steps.push(part("before the network", call.begin, network.begin));
        steps.push(part("network", network.begin, network.end));
        Some(network.end)
    }

    fn start(&self) -> Result<Vec<Step>, MissingSpan> {
        let begin = self.marks.created;
        let is_main =
            |s: &Span| s.attributes.get("subresource").is_none_or(String::is_empty) && !s.is_of_node();
        let create = self
            .request("create", begin, is_main)
            .ok_or(MissingSpan("API create"))?;
        let is_binding = |s: &Span| s.is("subresource", "binding") && self.is_named(s);
        let bind = self
            .request("create", create.begin, is_binding)
            .ok_or(MissingSpan("scheduler bind"))?;
        let seen = self
            .own("pod_worker_step", bind.begin)
            .filter(|s| s.begin <= self.marks.running)
            .ok_or(MissingSpan("kubelet sees the pod"))?;
        let mut steps = vec![
            step("API create", begin, create.end),
            step("scheduler decides", create.end, bind.begin),
            step("scheduler bind", bind.begin, bind.end),
            step("kubelet sees the pod", bind.end, seen.begin),
        ];
        self.add(&mut steps, "volumes", "set_up_volumes", begin);
        let sandbox = self.own("create_sandbox", begin).ok_or(MissingSpan("sandbox"))?;
        steps.push(step("sandbox", sandbox.begin, sandbox.end));
        if let Some(call) = self.call(sandbox, "RunPodSandbox") {
            let network = self.network(&mut steps, "Add", call);
            let from = network.unwrap_or(call.begin);
            self.processes(&mut steps, call, from, "image, shim start, runtime create");
        }
        self.add(&mut steps, "image check", "inspect_image", begin);
        self.add(&mut steps, "image pull", "pull_image", begin);
        let create = self
            .own("create_container", begin)
            .ok_or(MissingSpan("container create"))?;
        steps.push(step("container create", create.begin, create.end));
        if let Some(call) = self.call(create, "CreateContainer") {
            steps.push(part("containerd", call.begin, call.end));
        }
        let start = self
            .own("start_container", begin)
            .ok_or(MissingSpan("container start"))?;
        steps.push(step("container start", start.begin, start.end));
        if let Some(call) = self.call(start, "StartContainer") {
            self.processes(&mut steps, call, call.begin, "runtime create");
        }
        // containerd's event of the start may be reported before the call has answered.
        let write = self
            .spans
            .iter()
            .filter(|s| s.is("verb", "update") && s.is("resource", "pods") && s.is("subresource", "status"))
            .filter(|s| s.is_of_node() && self.is_named(s))
            .filter(|s| s.begin >= start.begin && s.begin <= self.marks.running)
            .max_by_key(|s| s.begin)
            .ok_or(MissingSpan("status write"))?;
        if write.begin > start.end {
            steps.push(step("kubelet decides", start.end, write.begin));
        }
        steps.push(step("status write", write.begin, write.end));
        steps.push(step("watcher sees Running", write.end, self.marks.running));
        Ok(steps)
    }

    fn end(&self) -> Result<Vec<Step>, MissingSpan> {
        let begin = self.marks.deleted;
        let of_client = |s: &Span| !s.is_of_node() && self.is_named(s);
        let delete = self
            .request("delete", begin, of_client)
            .ok_or(MissingSpan("API delete"))?;
        let seen = self
            .own("pod_worker_step", delete.begin)
            .ok_or(MissingSpan("kubelet sees the deletion"))?;
        let mut steps = vec![
            step("API delete", begin, delete.end),
            step("kubelet sees the deletion", delete.end, seen.begin),
        ];
        self.add(&mut steps, "endpoints", "await_endpoints", begin);
        self.add(&mut steps, "accept queues", "read_accept_queues", begin);
        let stop = self
            .own("stop_container", begin)
            .ok_or(MissingSpan("container stop"))?;
        steps.push(step("container stop", stop.begin, stop.end));
        if let Some(call) = self.call(stop, "StopContainer")
            && let Some(exit) = self.event("/tasks/exit", call)
        {
            steps.push(part("signal, exit of the process", call.begin, exit));
            steps.push(part("answer", exit, call.end));
        }
        let sandbox = self
            .own("stop_sandbox", begin)
            .ok_or(MissingSpan("sandbox stop"))?;
        steps.push(step("sandbox stop", sandbox.begin, sandbox.end));
        if let Some(call) = self.call(sandbox, "StopPodSandbox") {
            self.network(&mut steps, "Del", call);
        }
        self.add(&mut steps, "container removal", "remove_container", begin);
        self.add(&mut steps, "sandbox removal", "remove_sandbox", begin);
        self.add(&mut steps, "volumes", "tear_down_volumes", begin);
        let is_final = |s: &Span| s.is_of_node() && self.is_named(s);
        let last = self
            .request("delete", begin, is_final)
            .ok_or(MissingSpan("final delete"))?;
        let is_status = |s: &Span| is_final(s) && s.end <= last.begin;
        if let Some(write) = self.request("update", stop.begin, is_status) {
            steps.push(step("status write", write.begin, write.end));
        }
        steps.push(step("final delete", last.begin, last.end));
        steps.push(step("watcher sees the deletion", last.end, self.marks.gone));
        Ok(steps)
    }
}

/// How long none of the steps was in progress, of a way from `begin` to `end`.
pub fn outside(steps: &[Step], begin: Nanos, end: Nanos) -> Nanos {
    let mut all: Vec<(Nanos, Nanos)> = steps
        .iter()
        .map(|s| (s.begin.max(begin), s.end.min(end)))
        .collect();
    all.sort_unstable();
    let mut covered_to = begin;
    let mut outside = 0;
    for (from, to) in all {
        outside += (from - covered_to).max(0);
        covered_to = covered_to.max(to);
    }
    outside + (end - covered_to).max(0)
}

#[cfg(test)]
mod tests;
