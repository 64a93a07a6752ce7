//! The parameters of requests, as the documents list them.

/// A query or path parameter.
#[derive(Debug)]
pub(super) struct Parameter {
    pub name: &'static str,
    /// `query` or `path`.
    pub location: &'static str,
    pub of: &'static str,
    pub description: &'static str,
}

const fn query(name: &'static str, of: &'static str, description: &'static str) -> Parameter {
    Parameter {
        name,
        location: "query",
        of,
        description,
    }
}

const fn path(name: &'static str, description: &'static str) -> Parameter {
    Parameter {
        name,
        location: "path",
        of: "string",
        description,
    }
}

pub(super) const NAME: &Parameter = &path("name", "The object's name.");
pub(super) const NAMESPACE: &Parameter = &path("namespace", "The object's namespace.");
pub(super) const PRETTY: &Parameter = &query("pretty", "string", "Whether JSON is indented for people.");
/// The path after `/proxy/`.
pub(super) const PROXIED: &Parameter = &path("path", "The path of the proxied request.");

const CONTINUE: &Parameter = &query(
    "continue",
    "string",
    "The token of a list that was cut by limit, to read on where it stopped.",
);
const FIELD_SELECTOR: &Parameter = &query(
    "fieldSelector",
    "string",
    "Only objects with these fields: a=b, a!=b, joined by commas.",
);
const LABEL_SELECTOR: &Parameter = &query(
    "labelSelector",
    "string",
    "Only objects with these labels: a=b, a!=b, a, !a, a in (b,c), a notin (b,c), joined by commas.",
);
const LIMIT: &Parameter = &query(
    "limit",
    "integer",
    "At most this many objects; the list's metadata then holds a token for the rest.",
);
const RESOURCE_VERSION: &Parameter = &query(
    "resourceVersion",
    "string",
    "The version to read or to watch from; what it means for a list is up to resourceVersionMatch.",
);
const RESOURCE_VERSION_MATCH: &Parameter = &query(
    "resourceVersionMatch",
    "string",
    "Exact: as of resourceVersion; NotOlderThan: that or newer.",
);
const SEND_INITIAL_EVENTS: &Parameter = &query(
    "sendInitialEvents",
    "boolean",
    "Whether a watch begins with all objects there are, and a bookmark after them.",
);
const TIMEOUT_SECONDS: &Parameter = &query(
    "timeoutSeconds",
    "integer",
    "How long the request may last, a watch included.",
);
const BOOKMARKS: &Parameter = &query(
    "allowWatchBookmarks",
    "boolean",
    "Whether a watch may carry BOOKMARK events, which only say how far it has come.",
);
const WATCH: &Parameter = &query(
    "watch",
    "boolean",
    "Whether to go on with the changes as they happen.",
);

/// Of lists and watches.
pub(super) const LIST: &[&Parameter] = &[
    BOOKMARKS,
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    TIMEOUT_SECONDS,
    WATCH,
];

const DRY_RUN: &Parameter = &query("dryRun", "string", "All: do everything but write.");
const FIELD_MANAGER: &Parameter = &query(
    "fieldManager",
    "string",
    "Who makes the change: up to 128 printable characters.",
);
/// kubectl checks for it before it relies on server-side validation.
const FIELD_VALIDATION: &Parameter = &query(
    "fieldValidation",
    "string",
    "What unknown or repeated fields lead to: Ignore, Warn (the default), or Strict, which rejects them.",
);
const FORCE: &Parameter = &query(
    "force",
    "boolean",
    "Whether an apply takes over fields that others manage.",
);

/// Of creates and updates.
pub(super) const WRITE: &[&Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
pub(super) const PATCH: &[&Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];

const GRACE_PERIOD_SECONDS: &Parameter = &query(
    "gracePeriodSeconds",
    "integer",
    "How long the object may take to end; 0: at once. By default it is the object's own.",
);
const ORPHAN_DEPENDENTS: &Parameter = &query(
    "orphanDependents",
    "boolean",
    "Deprecated for propagationPolicy: whether dependents stay.",
);
const PROPAGATION_POLICY: &Parameter = &query(
    "propagationPolicy",
    "string",
    "What becomes of dependents: Orphan, Background or Foreground.",
);

pub(super) const DELETE: &[&Parameter] = &[
    DRY_RUN,
    GRACE_PERIOD_SECONDS,
    ORPHAN_DEPENDENTS,
    PROPAGATION_POLICY,
];

pub(super) const DELETE_COLLECTION: &[&Parameter] = &[
    CONTINUE,
    DRY_RUN,
    FIELD_SELECTOR,
    GRACE_PERIOD_SECONDS,
    LABEL_SELECTOR,
    LIMIT,
    ORPHAN_DEPENDENTS,
    PROPAGATION_POLICY,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    TIMEOUT_SECONDS,
];

const CONTAINER: &Parameter = &query(
    "container",
    "string",
    "Which container, where the pod has several.",
);
const STDERR: &Parameter = &query("stderr", "boolean", "Whether to send standard error.");
const STDIN: &Parameter = &query("stdin", "boolean", "Whether to take standard input.");
const STDOUT: &Parameter = &query("stdout", "boolean", "Whether to send standard output.");
const TTY: &Parameter = &query("tty", "boolean", "Whether there is a terminal.");
const COMMAND: &Parameter = &query(
    "command",
    "string",
    "The command, with one parameter for each argument; it is not run in a shell.",
);
const PORTS: &Parameter = &query("ports", "integer", "The ports to forward to.");
const PROXY_PATH: &Parameter = &query("path", "string", "The path of the proxied request.");

const LOG: &[&Parameter] = &[
    CONTAINER,
    &query(
        "follow",
        "boolean",
        "Whether to go on with what is written from now.",
    ),
    &query(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Whether to believe a node whose certificate cannot be checked.",
    ),
    &query("limitBytes", "integer", "At most this many bytes."),
    &query(
        "previous",
        "boolean",
        "Whether to read the container that ran before.",
    ),
    &query("sinceSeconds", "integer", "Only what is not older than this."),
    &query("stream", "string", "All, Stdout or Stderr."),
    &query("tailLines", "integer", "At most this many lines, the last ones."),
    &query("timestamps", "boolean", "Whether each line begins with its time."),
];

/// The parameters of a subresource in addition to the usual ones.
pub(super) fn of_subresource(name: &str) -> &'static [&'static Parameter] {
    match name {
        "log" => LOG,
        "attach" => &[CONTAINER, STDERR, STDIN, STDOUT, TTY],
        "exec" => &[COMMAND, CONTAINER, STDERR, STDIN, STDOUT, TTY],
        "portforward" => &[PORTS],
        "proxy" => &[PROXY_PATH],
        _ => &[],
    }
}
