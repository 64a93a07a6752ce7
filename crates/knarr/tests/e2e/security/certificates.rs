//! A hostile node, and a client with a bootstrap token, request certificates with other identities. The requests are made with
//! openssl, and openssl reads the certificates.

use std::process::Command;

use libtest_mimic::Failed;

use super::openssl::{Credentials, OpenSsl, csr};
use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "a1_no_request_becomes_a_certificate_that_was_not_approved",
        requests,
    ),
    (
        "a4_a_kubelets_certificate_has_only_names_that_its_node_proved",
        serving,
    ),
];

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const FOR_CLIENTS: [&str; 2] = ["digital signature", "client auth"];
const FOR_SERVERS: [&str; 2] = ["digital signature", "server auth"];
/// Has openssl print a subject in its own order.
const NAMES: &str = "utf8,sep_multiline,sname,esc_ctrl";

fn requests(ns: &Namespace) -> Outcome {
    let openssl = OpenSsl::new(ns.cluster)?;
    openssl.key("k.pem")?;
    let token = bootstrap_token(ns, "abc001")?;
    let node = hostile_node(ns, &openssl, &token, "hostile")?;
    let good = openssl.request("k.pem", "/O=system:nodes/CN=system:node:hostile", "")?;
    openssl
        .request("k.pem", "/O=system:masters/CN=evil", "")
        .and_then(|pem| openssl.write("evil.pem", &pem))?;
    openssl.run(&["req", "-in", "evil.pem", "-outform", "DER", "-out", "evil.der"])?;
    use base64::Engine;
    let evil = base64::engine::general_purpose::STANDARD.encode(std::fs::read(openssl.path("evil.der"))?);
    let rest = good.split_once('\n').map_or("", |(_, rest)| rest);
    // One parser may read the block on the first line, another the one on the lines that follow.
    let two = format!("-----BEGIN CERTIFICATE REQUEST-----{evil}-----END CERTIFICATE REQUEST-----\n{rest}");
    let manager = "/O=system:nodes/CN=system:node:hostile/CN=system:kube-controller-manager";
    let multi = "/O=system:nodes+O=system:masters/CN=system:node:hostile";
    let long = [
        format!("{good}\n"),
        std::fs::read_to_string(openssl.path("evil.pem"))?,
    ]
    .concat();
    let multi = {
        let args = ["req", "-new", "-key", "k.pem", "-multivalue-rdn", "-subj", multi];
        openssl.run(&args)?
    };
    for credentials in [&node, &Credentials::Token(token.clone())] {
        for (what, pem, reason) in [
            ("a block within another", &two, "must be one PEM block"),
            ("two blocks", &long, "must be one PEM block"),
            (
                "two common names",
                &openssl.request("k.pem", manager, "")?,
                "several common names",
            ),
            (
                "several attributes in one RDN",
                &multi,
                "relative distinguished name",
            ),
        ] {
            let created = openssl.create(credentials, &csr("hostile", KUBELET_CLIENT, FOR_CLIENTS, pem));
            let Err(output) = created else {
                return Err(format!("{what} was accepted for {credentials:?}").into());
            };
            has(&output, reason)?;
        }
    }
    // It is rejected for an administrator, too.
    let rejected = ns.run_with(&["create", "-f", "-"], &csr("two", CLIENT, FOR_CLIENTS, &two));
    has(
        rejected
            .err()
            .as_ref()
            .and_then(Failed::message)
            .unwrap_or("created"),
        "spec.request",
    )?;

    // openssl reads the same subject, key and names in the request and in the certificate.
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
        let pem = openssl.request("k.pem", subject, "DNS:a.example.com,IP:10.1.2.3,URI:spiffe://a/b")?;
        openssl.write("plain.csr", &pem)?;
        ns.run_with(&["create", "-f", "-"], &csr(&name, CLIENT, FOR_CLIENTS, &pem))?;
        ns.run(&["certificate", "approve", &name])?;
        let certificate = certificate(ns, &name)?;
        openssl.write("plain.crt", &certificate)?;
        let of_request =
            openssl.run(&["req", "-in", "plain.csr", "-noout", "-subject", "-nameopt", NAMES])?;
        let of_certificate = openssl.run(&[
            "x509",
            "-in",
            "plain.crt",
            "-noout",
            "-subject",
            "-nameopt",
            NAMES,
        ])?;
        same(&of_certificate, &of_request)?;
        let key = openssl.run(&["req", "-in", "plain.csr", "-noout", "-pubkey"])?;
        same(
            &openssl.run(&["x509", "-in", "plain.crt", "-noout", "-pubkey"])?,
            &key,
        )?;
        let text = openssl.run(&["x509", "-in", "plain.crt", "-noout", "-text"])?;
        has(&text, "DNS:a.example.com, IP Address:10.1.2.3, URI:spiffe://a/b")?;
        has(&text, "CA:FALSE")?;
        ns.run(&["delete", "csr", &name])?;
    }
    ns.run(&["delete", "csr", "node-hostile"])?;
    ns.run(&["delete", "secret", "-n", "kube-system", "bootstrap-token-abc001"])?;
    Ok(())
}

fn serving(ns: &Namespace) -> Outcome {
    let openssl = OpenSsl::new(ns.cluster)?;
    openssl.key("k.pem")?;
    let token = bootstrap_token(ns, "abc002")?;
    let node = hostile_node(ns, &openssl, &token, "liar")?;
    openssl.create(&node, "apiVersion: v1\nkind: Node\nmetadata: { name: liar }\n")?;
    let status = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"liar"},"status":{"addresses":[
        {"type":"InternalIP","address":"127.0.0.1"},{"type":"Hostname","address":"liar"},
        {"type":"ExternalDNS","address":"kubernetes.default.svc"},
        {"type":"ExternalIP","address":"10.96.0.1"},{"type":"ExternalIP","address":"192.0.2.7"}]}}"#;
    let status = openssl.write("status.json", status)?.display().to_string();
    openssl.kubectl(
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
        let pem = openssl.request("k.pem", subject, names)?;
        openssl.create(&node, &csr(name, KUBELET_SERVING, FOR_SERVERS, &pem))?;
    }
    // The node has proved its own name. The approver handles requests in order: when this one is approved, it has
    // decided on those before it.
    let pem = openssl.request("k.pem", subject, "DNS:liar")?;
    openssl.create(&node, &csr("liar-own", KUBELET_SERVING, FOR_SERVERS, &pem))?;
    openssl.write("own.crt", &certificate(ns, "liar-own")?)?;
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

    // The serving certificate is valid for its port only.
    let config_map = [
        "get",
        "configmap",
        "-n",
        "kube-system",
        "extension-apiserver-authentication",
        "-o",
    ];
    let client_ca = ns.run(&[&config_map[..], &["jsonpath={.data.client-ca-file}"]].concat())?;
    let client_ca = openssl.write("client-ca.crt", &client_ca)?;
    let root_ca = ns.run(&[
        "get",
        "configmap",
        "kube-root-ca.crt",
        "-o",
        r"jsonpath={.data.ca\.crt}",
    ])?;
    let root_ca = openssl.write("root-ca.crt", &root_ca)?;
    let Credentials::Certificate { certificate, .. } = &node else {
        return Err("the node has no certificate".into());
    };
    for (what, verifies, expected) in [
        (
            "the node by the CA of clients",
            openssl.verifies(&client_ca, certificate),
            true,
        ),
        (
            "the node by the API server's CA",
            openssl.verifies(&root_ca, certificate),
            false,
        ),
        (
            "the port by the CA of clients",
            openssl.verifies(&client_ca, &openssl.path("own.crt")),
            false,
        ),
        (
            "the port by the API server's CA",
            openssl.verifies(&root_ca, &openssl.path("own.crt")),
            false,
        ),
    ] {
        same(&format!("{what}: {verifies}"), &format!("{what}: {expected}"))?;
    }
    let port = Credentials::Certificate {
        certificate: openssl.path("own.crt"),
        key: openssl.path("k.pem"),
    };
    let output = openssl
        .kubectl(&port, &["get", "nodes"])
        .err()
        .unwrap_or_default();
    has(&output, "Unauthorized")?;
    // The kubelet of the cluster's own node is still reached.
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

/// A token that `knarr token create` creates.
fn bootstrap_token(ns: &Namespace, id: &str) -> Result<String, Failed> {
    let token = format!("{id}.0123456789abcdef");
    let mut knarr = Command::new(env!("CARGO_BIN_EXE_knarr"));
    knarr.args(["token", "create", &token, "--kubeconfig"]);
    knarr.arg(ns.cluster.kubeconfig());
    knarr.arg("--data-dir").arg(ns.cluster.data_dir());
    crate::cluster::output_of(&mut knarr)?;
    Ok(token)
}

/// The credentials of a node that joined by TLS bootstrapping.
fn hostile_node(ns: &Namespace, openssl: &OpenSsl, token: &str, node: &str) -> Result<Credentials, Failed> {
    let pem = openssl.request("k.pem", &format!("/O=system:nodes/CN=system:node:{node}"), "")?;
    let name = format!("node-{node}");
    let request = csr(&name, KUBELET_CLIENT, FOR_CLIENTS, &pem);
    openssl.create(&Credentials::Token(token.to_string()), &request)?;
    Ok(Credentials::Certificate {
        certificate: openssl.write("node.crt", &certificate(ns, &name)?)?,
        key: openssl.path("k.pem"),
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
