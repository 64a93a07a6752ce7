//! The CAs of a data directory: of a new one, and of an earlier version, in which one CA signed everything.

use super::openssl::{Credentials, OpenSsl};
use crate::cluster::{Cluster, eventually, has, same};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "a4_a_directory_of_an_earlier_version_gets_separate_cas_and_accepts_its_clients",
    upgrade,
)];

const NEW: [&str; 3] = ["client-ca", "kubelet-serving-ca", "front-proxy-ca"];

fn upgrade() -> Outcome {
    let cluster = Cluster::prepare("cas")?;
    let outcome = scenario(&cluster);
    let killed = cluster.kill();
    outcome?;
    Ok(killed?)
}

fn scenario(cluster: &Cluster) -> Outcome {
    let openssl = OpenSsl::new(cluster)?;
    let pki = cluster.data_dir().join("pki");
    let file = |name: &str| pki.join(name).display().to_string();
    let ready = || {
        eventually("the API", || {
            let out = cluster.kubectl().args(["get", "--raw", "/readyz"]).output();
            out.is_ok_and(|out| out.status.success())
        })
    };
    cluster.launch_server()?;
    ready()?;
    cluster.terminate()?;
    // The state of an earlier version: one CA, and an administrator's certificate that it signed.
    for ca in NEW {
        for extension in ["crt", "key"] {
            std::fs::remove_file(pki.join(format!("{ca}.{extension}")))?;
        }
    }
    let ca = std::fs::read_to_string(file("ca.crt"))?;
    let key = openssl.key("admin.key")?;
    let request = openssl.request("admin.key", "/O=system:masters/CN=kubernetes-admin", "")?;
    openssl.write("admin.csr", &request)?;
    openssl.write("usage", "extendedKeyUsage=clientAuth\n")?;
    let sign = |out: &str| {
        let (ca, key) = (file("ca.crt"), file("ca.key"));
        let args = [
            "x509",
            "-req",
            "-in",
            "admin.csr",
            "-CA",
            &ca,
            "-CAkey",
            &key,
            "-days",
            "30",
        ];
        openssl.run(&[&args[..], &["-extfile", "usage", "-out", out]].concat())
    };
    sign("admin.crt")?;
    let earlier = Credentials::Certificate {
        certificate: openssl.path("admin.crt"),
        key: key.clone(),
    };

    cluster.launch_server()?;
    ready()?;
    same(&std::fs::read_to_string(file("ca.crt"))?, &ca)?;
    for name in NEW {
        let made = std::fs::read_to_string(file(&format!("{name}.crt")))?;
        same(&format!("{}", made == ca), "false")?;
    }
    openssl.kubectl(&earlier, &["get", "namespaces"])?;
    // From now on a client certificate of the server's CA is not accepted: from the next second, the resolution of certificates.
    let later = Credentials::Certificate {
        certificate: openssl.path("later.crt"),
        key,
    };
    eventually("new certificates of the old CA to be rejected", || {
        let output = sign("later.crt").map(|_| openssl.kubectl(&later, &["get", "namespaces"]));
        output.is_ok_and(|output| output.is_err_and(|output| output.contains("Unauthorized")))
    })?;

    cluster.terminate()?;
    std::fs::remove_file(file("client-ca-previous.crt"))?;
    cluster.launch_server()?;
    ready()?;
    let output = openssl
        .kubectl(&earlier, &["get", "namespaces"])
        .err()
        .unwrap_or_default();
    has(&output, "Unauthorized")
}
