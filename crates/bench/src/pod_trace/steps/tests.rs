//! Traced pods whose spans are written down here, and the steps that follow from them.

use super::*;

const UID: &str = "u-1";
const NAME: &str = "traced-1";

fn span(name: &str, begin: Nanos, end: Nanos, attributes: &[(&str, &str)]) -> Span {
    Span {
        id: format!("{name} {begin}").into_bytes(),
        parent: Vec::new(),
        name: name.into(),
        begin,
        end,
        attributes: attributes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn own(name: &str, begin: Nanos, end: Nanos) -> Span {
    span(name, begin, end, &[("uid", UID)])
}

fn child(parent: &Span, name: &str, begin: Nanos, end: Nanos) -> Span {
    Span {
        parent: parent.id.clone(),
        ..span(name, begin, end, &[])
    }
}

fn request(verb: &str, (user, subresource, name): (&str, &str, &str), begin: Nanos, end: Nanos) -> Span {
    let attributes = [
        ("verb", verb),
        ("resource", "pods"),
        ("subresource", subresource),
        ("name", name),
        ("user", user),
    ];
    span("request", begin, end, &attributes)
}

fn event(topic: &str, at: Nanos) -> TaskEvent {
    TaskEvent {
        topic: topic.into(),
        at,
    }
}

const NODE: &str = "system:node:bench";

/// A way of 0 to 200 and one of 1000 to 1100, with spans of another pod among them.
fn one() -> (Marks, Vec<Span>, Vec<TaskEvent>) {
    let sandbox = own("create_sandbox", 40, 100);
    let run = child(&sandbox, "RunPodSandbox", 42, 98);
    let create = own("create_container", 105, 120);
    let make = child(&create, "CreateContainer", 110, 118);
    let start = own("start_container", 120, 160);
    let begin = child(&start, "StartContainer", 122, 158);
    let stop = own("stop_container", 1010, 1040);
    let signal = child(&stop, "StopContainer", 1011, 1039);
    let stop_sandbox = own("stop_sandbox", 1041, 1060);
    let stop_call = child(&stop_sandbox, "StopPodSandbox", 1042, 1059);
    let cni = |command, begin, end| span("cni", begin, end, &[("command", command), ("pod", NAME)]);
    let spans = vec![
        request("create", ("kubernetes-admin", "", ""), 2, 10),
        request("create", ("system:kube-scheduler", "binding", NAME), 12, 20),
        own("pod_worker_step", 25, 160),
        span("pod_worker_step", 21, 22, &[("uid", "other")]),
        own("set_up_volumes", 26, 30),
        sandbox,
        run,
        cni("Add", 50, 60),
        own("inspect_image", 100, 104),
        create,
        make,
        start,
        begin,
        // The status of a step before: the pod is Running with the next one.
        request("update", (NODE, "status", NAME), 31, 35),
        request("update", (NODE, "status", "other"), 161, 162),
        request("update", (NODE, "status", NAME), 165, 180),
        request("delete", ("kubernetes-admin", "", NAME), 1001, 1005),
        own("pod_worker_step", 1008, 1060),
        stop,
        signal,
        stop_sandbox,
        stop_call,
        cni("Del", 1045, 1050),
        own("tear_down_volumes", 1061, 1070),
        request("update", (NODE, "status", NAME), 1071, 1080),
        request("delete", (NODE, "", NAME), 1081, 1090),
    ];
    let events = vec![
        event("/tasks/create", 80),
        event("/tasks/start", 90),
        event("/tasks/create", 140),
        event("/tasks/start", 150),
        event("/tasks/exit", 1030),
    ];
    let marks = Marks {
        name: NAME.into(),
        uid: UID.into(),
        created: 0,
        running: 200,
        deleted: 1000,
        gone: 1100,
    };
    (marks, spans, events)
}

fn rendered(steps: &[Step]) -> String {
    let line = |s: &Step| format!("{}{} {}-{}", "  ".repeat(s.depth), s.name, s.begin, s.end);
    steps.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_start_and_an_end_are_steps_in_their_order() {
    let (marks, spans, events) = one();
    let traced = trace(&marks, &spans, &events).unwrap();
    let start = "\
API create 0-10
scheduler decides 10-12
scheduler bind 12-20
kubelet sees the pod 20-25
volumes 26-30
sandbox 40-100
  before the network 42-50
  network 50-60
  image, shim start, runtime create 60-80
  runtime start 80-90
  answer 90-98
image check 100-104
container create 105-120
  containerd 110-118
container start 120-160
  runtime create 122-140
  runtime start 140-150
  answer 150-158
kubelet decides 160-165
status write 165-180
watcher sees Running 180-200";
    assert_eq!(rendered(&traced.start), start);
    let end = "\
API delete 1000-1005
kubelet sees the deletion 1005-1008
container stop 1010-1040
  signal, exit of the process 1011-1030
  answer 1030-1039
sandbox stop 1041-1060
  before the network 1042-1045
  network 1045-1050
volumes 1061-1070
status write 1071-1080
final delete 1081-1090
watcher sees the deletion 1090-1100";
    assert_eq!(rendered(&traced.end), end);
}

#[test]
fn without_events_only_the_parts_inside_of_containerd_are_missing() {
    let (marks, spans, _) = one();
    let traced = trace(&marks, &spans, &[]).unwrap();
    let parts: Vec<&str> = traced
        .start
        .iter()
        .filter(|s| s.depth == 1)
        .map(|s| s.name)
        .collect();
    assert_eq!(parts, ["before the network", "network", "containerd"]);
}

#[test]
fn a_required_span_that_has_not_arrived_is_named() {
    let (marks, spans, events) = one();
    for (position, expected) in spans.iter().enumerate().filter_map(|(i, s)| {
        let expected = match (s.name.as_str(), s.begin) {
            ("request", 2) => "API create",
            ("request", 12) => "scheduler bind",
            ("create_sandbox", _) => "sandbox",
            ("create_container", _) => "container create",
            ("start_container", _) => "container start",
            ("pod_worker_step", 25) => "kubelet sees the pod",
            ("request", 165) => "status write",
            ("request", 1001) => "API delete",
            ("pod_worker_step", 1008) => "kubelet sees the deletion",
            ("stop_container", _) => "container stop",
            ("stop_sandbox", _) => "sandbox stop",
            ("request", 1081) => "final delete",
            _ => return None,
        };
        Some((i, expected))
    }) {
        let mut fewer = spans.clone();
        fewer.remove(position);
        assert_eq!(trace(&marks, &fewer, &events), Err(MissingSpan(expected)));
    }
}

#[test]
fn an_answer_after_the_next_step_began_takes_no_negative_time() {
    let (marks, mut spans, events) = one();
    // The scheduler bound the pod before the client had its answer.
    spans[0].end = 18;
    let traced = trace(&marks, &spans, &events).unwrap();
    let decides = &traced.start[1];
    assert_eq!(
        (decides.name, decides.begin, decides.end),
        ("scheduler decides", 12, 12)
    );
}

#[test]
fn time_outside_of_all_steps_counts_once() {
    let of = |all: &[(Nanos, Nanos)]| -> Vec<Step> { all.iter().map(|(b, e)| step("s", *b, *e)).collect() };
    for (steps, expected) in [
        (&[][..], 100),
        (&[(0, 100)], 0),
        (&[(10, 20), (15, 30), (50, 60)], 70),
        (&[(50, 60), (10, 20)], 80),
        (&[(-50, 10), (90, 150)], 80),
        (&[(10, 80), (20, 30)], 30),
    ] {
        assert_eq!(outside(&of(steps), 0, 100), expected, "{steps:?}");
    }
}
