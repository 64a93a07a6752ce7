//! A hostile node, and a holder of a bootstrap token, ask for certificates that are not theirs. The requests are openssl's, and
//! openssl says what the certificates say.

use std::process::Command;

use libtest_mimic::Failed;

use super::openssl::{Desk, Shown, csr};
use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "a1_no_request_becomes_a_certificate_that_was_not_approved",
        requests,
    ),
    (
        "a4_a_kubelets_certificate_names_only_what_its_node_proved",
        serving,
    ),
];

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const FOR_CLIENTS: [&str; 2] = ["digital signature", "client auth"];
const FOR_SERVERS: [&str; 2] = ["digital signature", "server auth"];
/// As openssl prints a subject in the order in which it is written.
const NAMES: &str = "utf8,sep_multiline,sname,esc_ctrl";

fn requests(ns: &Namespace) -> Outcome {
    let desk = Desk::new(ns.cluster)?;
    desk.key("k.pem")?;
    let token = bootstrap_token(ns, "abc001")?;
    let node = hostile_node(ns, &desk, &token, "hostile")?;
    let good = desk.request("k.pem", "/O=system:nodes/CN=system:node:hostile", "")?;
    desk.request("k.pem", "/O=system:masters/CN=evil", "")
        .and_then(|pem| desk.write("evil.pem", &pem))?;
    desk.openssl(&["req", "-in", "evil.pem", "-outform", "DER", "-out", "evil.der"])?;
    use base64::Engine;
    let evil = base64::engine::general_purpose::STANDARD.encode(std::fs::read(desk.path("evil.der"))?);
    let rest = good.split_once('\n').map_or("", |(_, rest)| rest);
    // One reader found the block on the first line, another the one whose lines follow.
    let two = format!("-----BEGIN CERTIFICATE REQUEST-----{evil}-----END CERTIFICATE REQUEST-----\n{rest}");
    let manager = "/O=system:nodes/CN=system:node:hostile/CN=system:kube-controller-manager";
    let multi = "/O=system:nodes+O=system:masters/CN=system:node:hostile";
    let long = [
        format!("{good}\n"),
        std::fs::read_to_string(desk.path("evil.pem"))?,
    ]
    .concat();
    let multi = {
        let args = ["req", "-new", "-key", "k.pem", "-multivalue-rdn", "-subj", multi];
        desk.openssl(&args)?
    };
    for shown in [&node, &Shown::Token(token.clone())] {
        for (what, pem, reason) in [
            ("a block within another", &two, "must be one PEM block"),
            ("two blocks", &long, "must be one PEM block"),
            (
                "two common names",
                &desk.request("k.pem", manager, "")?,
                "several common names",
            ),
            (
                "several attributes in one RDN",
                &multi,
                "relative distinguished name",
            ),
        ] {
            let created = desk.create(shown, &csr("hostile", KUBELET_CLIENT, FOR_CLIENTS, pem));
            let Err(said) = created else {
                return Err(format!("{what} was accepted for {shown:?}").into());
            };
            has(&said, reason)?;
        }
    }
    // What is rejected for a node is for an administrator, too.
    let rejected = ns.run_with(&["create", "-f", "-"], &csr("two", CLIENT, FOR_CLIENTS, &two));
    has(
        rejected
            .err()
            .as_ref()
            .and_then(Failed::message)
            .unwrap_or("created"),
        "spec.request",
    )?;

    // The differential: what openssl reads in the request it reads in the certificate.
    for (number, subject) in [
        "/CN=ann",
        "/O=dev/O=qa/CN=ann",
        "/CN=ann/O=qa/OU=berth 7/O=dev/C=NO",
        "/O=Åsgård/CN=jörg",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("plain{number}");
        let pem = desk.request("k.pem", subject, "DNS:a.example.com,IP:10.1.2.3,URI:spiffe://a/b")?;
        desk.write("plain.csr", &pem)?;
        ns.run_with(&["create", "-f", "-"], &csr(&name, CLIENT, FOR_CLIENTS, &pem))?;
        ns.run(&["certificate", "approve", &name])?;
        let certificate = certificate(ns, &name)?;
        desk.write("plain.crt", &certificate)?;
        let of_request =
            desk.openssl(&["req", "-in", "plain.csr", "-noout", "-subject", "-nameopt", NAMES])?;
        let of_certificate = desk.openssl(&[
            "x509",
            "-in",
            "plain.crt",
            "-noout",
            "-subject",
            "-nameopt",
            NAMES,
        ])?;
        same(&of_certificate, &of_request)?;
        let key = desk.openssl(&["req", "-in", "plain.csr", "-noout", "-pubkey"])?;
        same(
            &desk.openssl(&["x509", "-in", "plain.crt", "-noout", "-pubkey"])?,
            &key,
        )?;
        let text = desk.openssl(&["x509", "-in", "plain.crt", "-noout", "-text"])?;
        has(&text, "DNS:a.example.com, IP Address:10.1.2.3, URI:spiffe://a/b")?;
        has(&text, "CA:FALSE")?;
        ns.run(&["delete", "csr", &name])?;
    }
    ns.run(&["delete", "csr", "node-hostile"])?;
    ns.run(&["delete", "secret", "-n", "kube-system", "bootstrap-token-abc001"])?;
    Ok(())
}

fn serving(ns: &Namespace) -> Outcome {
    let desk = Desk::new(ns.cluster)?;
    desk.key("k.pem")?;
    let token = bootstrap_token(ns, "abc002")?;
    let node = hostile_node(ns, &desk, &token, "liar")?;
    desk.create(&node, "apiVersion: v1\nkind: Node\nmetadata: { name: liar }\n")?;
    let status = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"liar"},"status":{"addresses":[
        {"type":"InternalIP","address":"127.0.0.1"},{"type":"Hostname","address":"liar"},
        {"type":"ExternalDNS","address":"kubernetes.default.svc"},
        {"type":"ExternalIP","address":"10.96.0.1"},{"type":"ExternalIP","address":"192.0.2.7"}]}}"#;
    let status = desk.write("status.json", status)?.display().to_string();
    desk.kubectl(
        &node,
        &["replace", "--raw", "/api/v1/nodes/liar/status", "-f", &status],
    )?;
    let subject = "/O=system:nodes/CN=system:node:liar";
    let claims = [
        ("liar-api", "DNS:kubernetes.default.svc"),
        ("liar-service", "IP:10.96.0.1"),
        ("liar-loopback", "IP:127.0.0.1"),
        ("liar-other", "DNS:liar,IP:192.0.2.7"),
        ("liar-node", "DNS:node1"),
    ];
    for (name, names) in claims {
        let pem = desk.request("k.pem", subject, names)?;
        desk.create(&node, &csr(name, KUBELET_SERVING, FOR_SERVERS, &pem))?;
    }
    // Its own name it has proved. The approver takes requests one after the other: when this one is approved, it has
    // decided on those before it.
    let pem = desk.request("k.pem", subject, "DNS:liar")?;
    desk.create(&node, &csr("liar-own", KUBELET_SERVING, FOR_SERVERS, &pem))?;
    desk.write("own.crt", &certificate(ns, "liar-own")?)?;
    for (name, _) in claims {
        let conditions = [
            "get",
            "csr",
            name,
            "-o",
            "jsonpath={.status.conditions}{.status.certificate}",
        ];
        same(&ns.run(&conditions)?, "")?;
        has(
            &ns.run(&["get", "csr", name, "-o", "jsonpath={.spec.extra}"])?,
            r#""certificates.knarr.io/remote-address":["127.0.0.1"]"#,
        )?;
    }

    // What it has is good for its port alone.
    let config_map = [
        "get",
        "configmap",
        "-n",
        "kube-system",
        "extension-apiserver-authentication",
        "-o",
    ];
    let client_ca = ns.run(&[&config_map[..], &["jsonpath={.data.client-ca-file}"]].concat())?;
    let client_ca = desk.write("client-ca.crt", &client_ca)?;
    let root_ca = ns.run(&[
        "get",
        "configmap",
        "kube-root-ca.crt",
        "-o",
        r"jsonpath={.data.ca\.crt}",
    ])?;
    let root_ca = desk.write("root-ca.crt", &root_ca)?;
    let Shown::Certificate { certificate, .. } = &node else {
        return Err("the node has no certificate".into());
    };
    for (what, verifies, expected) in [
        (
            "the node by the CA of clients",
            desk.verifies(&client_ca, certificate),
            true,
        ),
        (
            "the node by the API server's CA",
            desk.verifies(&root_ca, certificate),
            false,
        ),
        (
            "the port by the CA of clients",
            desk.verifies(&client_ca, &desk.path("own.crt")),
            false,
        ),
        (
            "the port by the API server's CA",
            desk.verifies(&root_ca, &desk.path("own.crt")),
            false,
        ),
    ] {
        same(&format!("{what}: {verifies}"), &format!("{what}: {expected}"))?;
    }
    let port = Shown::Certificate {
        certificate: desk.path("own.crt"),
        key: desk.path("k.pem"),
    };
    let said = desk.kubectl(&port, &["get", "nodes"]).err().unwrap_or_default();
    has(&said, "Unauthorized")?;
    // Logs and exec of the cluster's own node go on.
    ns.run(&["get", "--raw", "/api/v1/nodes/node1/proxy/healthz"])?;
    ns.run(&["delete", "node", "liar"])?;
    for name in claims
        .map(|(name, _)| name)
        .iter()
        .chain(&["liar-own", "node-liar"])
    {
        ns.run(&["delete", "csr", name])?;
    }
    ns.run(&["delete", "secret", "-n", "kube-system", "bootstrap-token-abc002"])?;
    Ok(())
}

/// Made by `knarr token create`.
fn bootstrap_token(ns: &Namespace, id: &str) -> Result<String, Failed> {
    let token = format!("{id}.0123456789abcdef");
    let mut knarr = Command::new(env!("CARGO_BIN_EXE_knarr"));
    knarr.args(["token", "create", &token, "--kubeconfig"]);
    knarr.arg(ns.cluster.kubeconfig());
    knarr.arg("--data-dir").arg(ns.cluster.data_dir());
    crate::cluster::output_of(&mut knarr)?;
    Ok(token)
}

/// The credentials of a node that joined in the ordinary way.
fn hostile_node(ns: &Namespace, desk: &Desk, token: &str, node: &str) -> Result<Shown, Failed> {
    let pem = desk.request("k.pem", &format!("/O=system:nodes/CN=system:node:{node}"), "")?;
    let name = format!("node-{node}");
    let request = csr(&name, KUBELET_CLIENT, FOR_CLIENTS, &pem);
    desk.create(&Shown::Token(token.to_string()), &request)?;
    Ok(Shown::Certificate {
        certificate: desk.write("node.crt", &certificate(ns, &name)?)?,
        key: desk.path("k.pem"),
    })
}

/// The certificate, once the request is signed.
fn certificate(ns: &Namespace, name: &str) -> Result<String, Failed> {
    let certificate = ["get", "csr", name, "-o", "jsonpath={.status.certificate}"];
    let encoded = ns.eventually_run(&certificate, |out| out.starts_with("LS0t"))?;
    use base64::Engine;
    let pem = base64::engine::general_purpose::STANDARD.decode(encoded.trim())?;
    Ok(String::from_utf8(pem)?)
}
