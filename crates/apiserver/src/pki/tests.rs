//! Files are created, kept and renewed, and those of an earlier version are used.

use super::*;
use crate::authn::certificate::certificate_user;
use std::os::unix::fs::PermissionsExt;

fn at(year: i16) -> Timestamp {
    format!("{year}-01-01T00:00:00Z").parse().unwrap()
}

fn names() -> Vec<String> {
    vec!["localhost".into(), "127.0.0.1".into()]
}

#[test]
fn what_is_there_is_kept_and_what_ends_is_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let first = Pki::open(directory.path(), at(2030)).unwrap();
    let server = first.server(&names()).unwrap();
    let again = Pki::open(directory.path(), at(2030)).unwrap();
    assert_eq!(again.ca_pem(), first.ca_pem());
    assert_eq!(
        again.server(&names()).unwrap().certificate_pem,
        server.certificate_pem
    );
    let wider = [names(), vec!["10.0.0.1".into()]].concat();
    assert_ne!(
        again.server(&wider).unwrap().certificate_pem,
        server.certificate_pem
    );
    let later = Pki::open(directory.path(), at(2031)).unwrap();
    assert_eq!(later.ca_pem(), first.ca_pem());
    let kept = again.admin().unwrap();
    assert_ne!(later.admin().unwrap().certificate_pem, kept.certificate_pem);
    assert_eq!(
        later.service_account_key().unwrap().signing,
        first.service_account_key().unwrap().signing
    );
}

#[test]
fn certificates_name_user_and_groups_and_keys_are_private() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), at(2030)).unwrap();
    let node = pki.node("n1").unwrap();
    let (_, pem) = parse_x509_pem(node.certificate_pem.as_bytes()).unwrap();
    let user = certificate_user(&pem.contents).unwrap();
    assert_eq!(user.node(), Some("n1"));
    let mode = fs::metadata(directory.path().join("ca.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

fn subjects_of(pem: &str, ca: &str) -> bool {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    let (_, ca) = parse_x509_pem(ca.as_bytes()).unwrap();
    let key = ca.parse_x509().unwrap();
    pem.parse_x509()
        .unwrap()
        .verify_signature(Some(key.public_key()))
        .is_ok()
}

#[test]
fn a4_each_ca_signs_only_what_it_is_for() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), at(2030)).unwrap();
    let cas = [
        pki.ca_pem(),
        pki.client_ca_pem(),
        pki.kubelet_serving_ca_pem(),
        pki.front_proxy_ca_pem(),
    ];
    for (what, identity, ca) in [
        ("server", pki.server(&names()).unwrap(), 0),
        ("admin", pki.admin().unwrap(), 1),
        ("node", pki.node("n").unwrap(), 1),
        ("front proxy", pki.front_proxy_client().unwrap(), 3),
    ] {
        for (number, of) in cas.iter().enumerate() {
            let signed = subjects_of(&identity.certificate_pem, of);
            assert_eq!(signed, number == ca, "{what} by {number}");
        }
    }
    assert_eq!(pki.previous_clients(), None);
    let again = Pki::open(directory.path(), at(2030)).unwrap();
    assert_eq!(again.client_ca_pem(), pki.client_ca_pem());
    assert_eq!(again.previous_clients(), None);
}

#[test]
fn a4_the_one_ca_of_an_earlier_version_stays_the_servers() {
    let directory = tempfile::tempdir().unwrap();
    save(directory.path(), CA, &make_ca("knarr-ca", at(2029)).unwrap()).unwrap();
    let before = fs::read_to_string(directory.path().join("ca.crt")).unwrap();
    let pki = Pki::open(directory.path(), at(2030)).unwrap();
    assert_eq!(pki.ca_pem(), before);
    assert_ne!(pki.client_ca_pem(), before);
    let previous = PreviousClients {
        ca_pem: before,
        before: at(2030),
    };
    assert_eq!(pki.previous_clients(), Some(&previous));
    // Also at the next start, until the file is removed.
    let again = Pki::open(directory.path(), at(2031)).unwrap();
    assert_eq!(again.previous_clients(), Some(&previous));
    fs::remove_file(directory.path().join(PREVIOUS_CLIENT_CA)).unwrap();
    let again = Pki::open(directory.path(), at(2031)).unwrap();
    assert_eq!(again.previous_clients(), None);
}

#[test]
fn a_pin_is_the_hash_of_the_key_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), at(2030)).unwrap();
    let (_, pem) = parse_x509_pem(pki.ca_pem().as_bytes()).unwrap();
    let key = KeyPair::from_pem(&fs::read_to_string(directory.path().join("ca.key")).unwrap()).unwrap();
    let hash = Sha256::digest(rcgen::PublicKeyData::subject_public_key_info(&key));
    let digits: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(pin(&pem.contents).unwrap(), format!("sha256:{digits}"));
    assert!(pin(b"no certificate").is_err());
}

#[test]
fn an_unreadable_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "").unwrap();
    let error = Pki::open(&path, at(2030)).err().unwrap().to_string();
    assert!(error.contains("file"), "{error}");
}
