//! Probes (SPEC L8) and lifecycle hooks (SPEC L9) of containers.

use k8s_openapi::api::core::v1::{
    ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::text;
use crate::facts;

/// Signals that are valid as `stopSignal` of a Linux container.
const SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// The action of a handler.
enum Action<'a> {
    Exec(&'a ExecAction),
    HttpGet(&'a HTTPGetAction),
    TcpSocket(&'a TCPSocketAction),
    Grpc(i32),
    Sleep(&'a SleepAction),
}

impl Action<'_> {
    fn field(&self) -> &'static str {
        match self {
            Action::Exec(_) => "exec",
            Action::HttpGet(_) => "httpGet",
            Action::TcpSocket(_) => "tcpSocket",
            Action::Grpc(_) => "grpc",
            Action::Sleep(_) => "sleep",
        }
    }

    fn validate(&self, grace_seconds: Option<i64>, path: &Path, errors: &mut ErrorList) {
        match self {
            Action::Exec(exec) => {
                if exec.command.as_ref().is_none_or(Vec::is_empty) {
                    errors.required(&path.child("command"), "");
                }
            }
            Action::HttpGet(http) => {
                if text(&http.path).is_empty() {
                    errors.required(&path.child("path"), "");
                }
                port(&http.port, &path.child("port"), errors);
                let scheme = text(&http.scheme);
                if !matches!(scheme, "HTTP" | "HTTPS") {
                    errors.not_supported(&path.child("scheme"), scheme, &["HTTP", "HTTPS"]);
                }
                for header in http.http_headers.iter().flatten() {
                    let messages = names::http_header_name(&header.name);
                    errors.all_invalid(&path.child("httpHeaders"), &header.name, messages);
                }
            }
            Action::TcpSocket(tcp) => port(&tcp.port, &path.child("port"), errors),
            Action::Grpc(number) => port(&IntOrString::Int(*number), &path.child("port"), errors),
            Action::Sleep(sleep) => {
                if let Some(grace) = grace_seconds
                    && !(0..=grace).contains(&sleep.seconds)
                {
                    errors.invalid(
                        path,
                        sleep.seconds,
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
                    );
                }
            }
        }
    }
}

/// Checks a port number or name.
fn port(port: &IntOrString, path: &Path, errors: &mut ErrorList) {
    match port {
        IntOrString::Int(number) => {
            for detail in names::port_number((*number).into()) {
                errors.invalid(path, *number, detail);
            }
        }
        IntOrString::String(name) => errors.all_invalid(path, name, names::port_name(name)),
    }
}

/// Checks that there is exactly one action; a further one is forbidden without validation of its fields.
fn handler(actions: Vec<Action<'_>>, grace_seconds: Option<i64>, path: &Path, errors: &mut ErrorList) {
    if actions.is_empty() {
        errors.required(path, "must specify a handler type");
    }
    for (i, action) in actions.iter().enumerate() {
        let at = path.child(action.field());
        if i == 0 {
            action.validate(grace_seconds, &at, errors);
        } else {
            errors.forbidden(&at, "may not specify more than 1 handler type");
        }
    }
}

fn probe(probe: &Probe, path: &Path, errors: &mut ErrorList) {
    let actions = [
        probe.exec.as_ref().map(Action::Exec),
        probe.http_get.as_ref().map(Action::HttpGet),
        probe.tcp_socket.as_ref().map(Action::TcpSocket),
        probe.grpc.as_ref().map(|grpc| Action::Grpc(grpc.port)),
    ];
    handler(actions.into_iter().flatten().collect(), None, path, errors);
    const FACTS: &[&str] = &[
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ];
    facts::check(errors, path, probe, FACTS);
    if let Some(grace) = probe.termination_grace_period_seconds
        && grace <= 0
    {
        errors.invalid(
            &path.child("terminationGracePeriodSeconds"),
            grace,
            "must be greater than 0",
        );
    }
}

fn success_threshold_is_one(probe: &Probe, path: &Path, errors: &mut ErrorList) {
    let threshold = probe.success_threshold.unwrap_or(0);
    if threshold != 1 {
        errors.invalid(&path.child("successThreshold"), threshold, "must be 1");
    }
}

pub(super) fn liveness(of: &Probe, path: &Path, errors: &mut ErrorList) {
    probe(of, path, errors);
    success_threshold_is_one(of, path, errors);
}

pub(super) fn startup(of: &Probe, path: &Path, errors: &mut ErrorList) {
    probe(of, path, errors);
    success_threshold_is_one(of, path, errors);
}

pub(super) fn readiness(of: &Probe, path: &Path, errors: &mut ErrorList) {
    probe(of, path, errors);
    if let Some(grace) = of.termination_grace_period_seconds {
        errors.invalid(
            &path.child("terminationGracePeriodSeconds"),
            grace,
            "must not be set for readinessProbes",
        );
    }
}

pub(super) fn lifecycle(
    lifecycle: &Lifecycle,
    grace_seconds: Option<i64>,
    os: Option<&str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let mut hook = |of: &LifecycleHandler, path: Path| {
        let actions = [
            of.exec.as_ref().map(Action::Exec),
            of.http_get.as_ref().map(Action::HttpGet),
            of.tcp_socket.as_ref().map(Action::TcpSocket),
            of.sleep.as_ref().map(Action::Sleep),
        ];
        handler(
            actions.into_iter().flatten().collect(),
            grace_seconds,
            &path,
            errors,
        );
    };
    if let Some(of) = &lifecycle.post_start {
        hook(of, path.child("postStart"));
    }
    if let Some(of) = &lifecycle.pre_stop {
        hook(of, path.child("preStop"));
    }
    if let Some(signal) = &lifecycle.stop_signal {
        let at = path.child("stopSignal");
        let supported: &[&str] = match os {
            None => {
                return errors.forbidden(&at, "may not be set for containers with empty `spec.os.name`");
            }
            Some("linux") => &SIGNALS,
            Some("windows") => &["SIGKILL", "SIGTERM"],
            Some(_) => return,
        };
        if !supported.contains(&signal.as_str()) {
            errors.not_supported(&at, signal, supported);
        }
    }
}
