//! The CAs of a data directory: a new one, and one of an earlier version, whose one CA signed everything.

use super::openssl::{Desk, Shown};
use crate::cluster::{Cluster, eventually, has, same};
use crate::{Alone, Outcome};

pub const SCENARIOS: &[Alone] = &[(
    "a4_a_directory_of_an_earlier_version_gets_cas_of_their_own_and_keeps_its_clients",
    upgrade,
)];

const NEW: [&str; 3] = ["client-ca", "kubelet-serving-ca", "front-proxy-ca"];

fn upgrade() -> Outcome {
    let cluster = Cluster::prepare("cas")?;
    let outcome = scenario(&cluster);
    let ended = cluster.kill();
    outcome?;
    Ok(ended?)
}

fn scenario(cluster: &Cluster) -> Outcome {
    let desk = Desk::new(cluster)?;
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
    // As an earlier version left it: one CA, and what it signed for an administrator.
    for ca in NEW {
        for extension in ["crt", "key"] {
            std::fs::remove_file(pki.join(format!("{ca}.{extension}")))?;
        }
    }
    let ca = std::fs::read_to_string(file("ca.crt"))?;
    let key = desk.key("admin.key")?;
    let request = desk.request("admin.key", "/O=system:masters/CN=kubernetes-admin", "")?;
    desk.write("admin.csr", &request)?;
    desk.write("usage", "extendedKeyUsage=clientAuth\n")?;
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
        desk.openssl(&[&args[..], &["-extfile", "usage", "-out", out]].concat())
    };
    sign("admin.crt")?;
    let kept = Shown::Certificate {
        certificate: desk.path("admin.crt"),
        key: key.clone(),
    };

    cluster.launch_server()?;
    ready()?;
    same(&std::fs::read_to_string(file("ca.crt"))?, &ca)?;
    for name in NEW {
        let made = std::fs::read_to_string(file(&format!("{name}.crt")))?;
        same(&format!("{}", made == ca), "false")?;
    }
    desk.kubectl(&kept, &["get", "namespaces"])?;
    // The server's own CA makes nobody an administrator from now on: from the next second, as certificates count time.
    let later = Shown::Certificate {
        certificate: desk.path("later.crt"),
        key,
    };
    eventually("what the old CA signs now not to count", || {
        let said = sign("later.crt").map(|_| desk.kubectl(&later, &["get", "namespaces"]));
        said.is_ok_and(|said| said.is_err_and(|said| said.contains("Unauthorized")))
    })?;

    cluster.terminate()?;
    std::fs::remove_file(file("client-ca-previous.crt"))?;
    cluster.launch_server()?;
    ready()?;
    let said = desk
        .kubectl(&kept, &["get", "namespaces"])
        .err()
        .unwrap_or_default();
    has(&said, "Unauthorized")
}
