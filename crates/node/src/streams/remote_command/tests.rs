//! What needs no connection; the protocols themselves are tested through the server.

use serde_json::json;

use super::*;

#[test]
fn a_query_selects_the_streams() {
    let all = Options {
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    for (query, options) in [
        (&[("input", "1"), ("output", "1"), ("error", "1")][..], Some(all)),
        (
            &[("output", "1"), ("tty", "0")],
            Some(Options {
                stdout: true,
                ..Options::default()
            }),
        ),
        (
            &[("output", "1"), ("error", "1"), ("tty", "1")],
            Some(Options {
                stdout: true,
                tty: true,
                ..Options::default()
            }),
        ),
        (&[("command", "sh"), ("tty", "1")], None),
        (&[("output", "true")], None),
    ] {
        assert_eq!(Options::from_query(query.iter().copied()), options, "{query:?}");
    }
}

#[test]
fn a_status_is_sent_in_the_clients_form() {
    let success = json!({"status": "Success"});
    let failure = json!({"status": "Failure", "message": "command terminated"});
    for (protocol, status, sent) in [
        (Some("v5.channel.k8s.io"), &success, success.to_string()),
        (Some("v4.base64.channel.k8s.io"), &failure, failure.to_string()),
        (Some("v3.channel.k8s.io"), &failure, "command terminated".into()),
        (Some("channel.k8s.io"), &success, String::new()),
        (None, &failure, "command terminated".into()),
    ] {
        assert_eq!(
            StatusForm::of(protocol).render(status),
            sent.into_bytes(),
            "{protocol:?}"
        );
    }
}
