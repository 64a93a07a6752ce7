//! Which client certificates are accepted, over an in-memory connection.

use k8s_openapi::jiff::SignedDuration;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::pki::Pki;

fn now() -> Timestamp {
    // The handshake uses the real clock.
    Timestamp::now()
}

/// The client certificate as the server sees it.
async fn peer(tls: &Tls, presented: &Identity) -> PeerCertificate {
    peer_at(tls, presented, now()).await
}

/// Like [`peer`], for a server whose clock shows `at`.
async fn peer_at(tls: &Tls, presented: &Identity, at: Timestamp) -> PeerCertificate {
    let (client, server) = tokio::io::duplex(64 * 1024);
    let connector = connector(Some(presented), None).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let acceptor = TlsAcceptor::from(tls.config.clone());
    let (_client, stream) =
        tokio::try_join!(connector.connect(name, client), acceptor.accept(server)).unwrap();
    tls.peer(stream.get_ref().1, at)
}

fn user(peer: &PeerCertificate) -> Option<&str> {
    peer.user(now()).ok().flatten().map(|user| user.name.as_str())
}

#[tokio::test]
async fn a4_only_certificates_of_the_client_ca_authenticate() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let server = pki.server(&["localhost".into()]).unwrap();
    let tls = Tls::new(&server, pki.client_ca_pem()).unwrap();
    let serving = {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["n".into()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "system:node:n");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let request = knarr_api::certificates::CertificateRequest::decode(pem.as_bytes()).unwrap();
        // A kubelet's serving certificate, and a client certificate that the CA of kubelets' ports should never sign.
        ["server auth", "client auth"].map(|usage| Identity {
            certificate_pem: pki
                .kubelet_serving_authority()
                .sign(&request, &[usage.to_string()], None, now())
                .unwrap(),
            key_pem: key.serialize_pem(),
        })
    };
    let [serving, serving_as_client] = serving;
    for (what, presented, expected) in [
        ("the admin", &pki.admin().unwrap(), Some("kubernetes-admin")),
        ("a node", &pki.node("n").unwrap(), Some("system:node:n")),
        ("the front proxy", &pki.front_proxy_client().unwrap(), None),
        ("the API server", &server, None),
        ("a kubelet's port", &serving, None),
        ("a kubelet's port, for clients", &serving_as_client, None),
    ] {
        assert_eq!(user(&peer(&tls, presented).await), expected, "{what}");
    }
    let without_ca = Tls::without_client_ca(&server).unwrap();
    assert_eq!(user(&peer(&without_ca, &pki.admin().unwrap()).await), None);
    without_ca.set_client_ca(pki.client_ca_pem()).unwrap();
    let admin = peer(&without_ca, &pki.admin().unwrap()).await;
    assert_eq!(user(&admin), Some("kubernetes-admin"));
}

#[tokio::test]
async fn a_connection_made_with_a_wrong_clock_authenticates_once_the_clock_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let server = pki.server(&["localhost".into()]).unwrap();
    let tls = Tls::new(&server, pki.client_ca_pem()).unwrap();
    let presented = pki.node("n").unwrap();
    // A certificate is valid for a year at the most.
    for years in [-3, 3] {
        let wrong = now() + SignedDuration::from_hours(24 * 365 * years);
        let peer = peer_at(&tls, &presented, wrong).await;
        assert!(peer.user(wrong).is_err(), "{years}");
        assert_eq!(user(&peer), Some("system:node:n"), "{years}");
    }
    let strangers = tempfile::tempdir().unwrap();
    let other = Pki::open(strangers.path(), now()).unwrap().node("n").unwrap();
    let wrong = now() - SignedDuration::from_hours(24 * 365 * 3);
    assert_eq!(user(&peer_at(&tls, &other, wrong).await), None);
}

#[tokio::test]
async fn a4_certificates_of_an_earlier_versions_ca_are_accepted_until_they_expire() {
    // The data directory of an earlier version: one CA, which also signs clients.
    let made = tempfile::tempdir().unwrap();
    let earlier = now() - SignedDuration::from_hours(24);
    drop(Pki::open(made.path(), earlier).unwrap());
    let old = tempfile::tempdir().unwrap();
    for extension in ["crt", "key"] {
        let from = made.path().join(format!("client-ca.{extension}"));
        std::fs::copy(from, old.path().join(format!("ca.{extension}"))).unwrap();
    }
    let before = Pki::open(made.path(), earlier).unwrap().node("n").unwrap();
    // A later client certificate of the same CA is not accepted.
    let after = tempfile::tempdir().unwrap();
    for extension in ["crt", "key"] {
        let from = made.path().join(format!("client-ca.{extension}"));
        std::fs::copy(from, after.path().join(format!("client-ca.{extension}"))).unwrap();
    }
    let later = now() + SignedDuration::from_hours(1);
    let after = Pki::open(after.path(), later).unwrap().node("n").unwrap();

    let pki = Pki::open(old.path(), now()).unwrap();
    let server = pki.server(&["localhost".into()]).unwrap();
    let accepting =
        Tls::with_previous_client_ca(&server, pki.client_ca_pem(), pki.previous_clients()).unwrap();
    let strict = Tls::new(&server, pki.client_ca_pem()).unwrap();
    assert_eq!(user(&peer(&accepting, &before).await), Some("system:node:n"));
    assert_eq!(user(&peer(&accepting, &after).await), None);
    assert_eq!(
        user(&peer(&accepting, &pki.admin().unwrap()).await),
        Some("kubernetes-admin")
    );
    // The API server's own certificate is not accepted as a client's, although the same CA signed it.
    assert_eq!(user(&peer(&accepting, &server).await), None);
    assert_eq!(user(&peer(&strict, &before).await), None);
}

/// Whether a client that trusts this CA accepts a server with this certificate.
async fn is_accepted(ca_pem: &str, presented: &Identity, name: &str) -> bool {
    let authority = certificates(ca_pem, "the CA").unwrap().remove(0);
    let connector = connector(None, Some(&authority)).unwrap();
    let (client, server) = tokio::io::duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(Tls::without_client_ca(presented).unwrap().config);
    let accept = tokio::spawn(async move { acceptor.accept(server).await.map(drop) });
    let name = ServerName::try_from(name.to_string()).unwrap();
    let accepted = connector.connect(name, client).await.is_ok();
    // If the client aborts the handshake, so does the server.
    drop(accept.await.unwrap());
    accepted
}

#[tokio::test]
async fn a4_servers_are_verified_with_the_ca_of_their_kind() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let api_server = pki.server(&["127.0.0.1".into()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = knarr_api::certificates::CertificateRequest::decode(pem.as_bytes()).unwrap();
    let signed = |authority: crate::signing::Authority| Identity {
        certificate_pem: authority
            .sign(&request, &["server auth".to_string()], None, now())
            .unwrap(),
        key_pem: key.serialize_pem(),
    };
    let kubelet = signed(pki.kubelet_serving_authority());
    let of_clients = signed(pki.client_authority());
    for (what, ca, presented, name, accepted) in [
        ("the API server", pki.ca_pem(), &api_server, "127.0.0.1", true),
        (
            "a kubelet",
            pki.kubelet_serving_ca_pem(),
            &kubelet,
            "127.0.0.1",
            true,
        ),
        (
            "a kubelet elsewhere",
            pki.kubelet_serving_ca_pem(),
            &kubelet,
            "127.0.0.2",
            false,
        ),
        (
            "a kubelet as the API server",
            pki.ca_pem(),
            &kubelet,
            "127.0.0.1",
            false,
        ),
        (
            "the API server as a kubelet",
            pki.kubelet_serving_ca_pem(),
            &api_server,
            "127.0.0.1",
            false,
        ),
        (
            "a client as the API server",
            pki.ca_pem(),
            &of_clients,
            "127.0.0.1",
            false,
        ),
        (
            "a client as a kubelet",
            pki.kubelet_serving_ca_pem(),
            &of_clients,
            "127.0.0.1",
            false,
        ),
    ] {
        assert_eq!(is_accepted(ca, presented, name).await, accepted, "{what}");
    }
}

#[tokio::test]
async fn an_address_with_a_port_as_server_name_is_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let tls = Tls::new(&pki.server(&["localhost".into()]).unwrap(), pki.client_ca_pem()).unwrap();
    let name = b"a-server.local";
    let sent = b"127.0.0.1:6443";
    let mut hello = Vec::new();
    {
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
        let server = ServerName::try_from(std::str::from_utf8(name).unwrap()).unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), server.to_owned()).unwrap();
        client.write_tls(&mut hello).unwrap();
    }
    let at = hello.windows(name.len()).position(|part| part == name).unwrap();
    hello[at..at + sent.len()].copy_from_slice(sent);
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    tokio::io::AsyncWriteExt::write_all(&mut client, &hello)
        .await
        .unwrap();
    let error = TlsAcceptor::from(tls.config.clone())
        .accept(server)
        .await
        .unwrap_err();
    assert!(is_invalid_server_name(&error), "{error}");
    let (client, server) = tokio::io::duplex(64);
    drop(client);
    let error = TlsAcceptor::from(tls.config.clone())
        .accept(server)
        .await
        .unwrap_err();
    assert!(!is_invalid_server_name(&error), "{error}");
}
