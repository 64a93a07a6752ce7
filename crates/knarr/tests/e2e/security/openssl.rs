//! Keys and certificate requests made with openssl, and kubectl with the resulting credentials.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::Failed;

use crate::cluster::{Cluster, output_of};

/// A directory of keys, requests and certificates, in which openssl runs.
pub struct OpenSsl {
    dir: tempfile::TempDir,
    server: String,
}

/// The credentials of kubectl.
#[derive(Clone, Debug)]
pub enum Credentials {
    Token(String),
    Certificate { certificate: PathBuf, key: PathBuf },
}

impl OpenSsl {
    pub fn new(cluster: &Cluster) -> Result<OpenSsl, Failed> {
        Ok(OpenSsl {
            dir: tempfile::tempdir()?,
            server: cluster.server(),
        })
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub fn write(&self, file: &str, text: &str) -> Result<PathBuf, Failed> {
        let path = self.path(file);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Runs openssl here; returns its output if it succeeds.
    pub fn run(&self, args: &[&str]) -> Result<String, Failed> {
        let mut openssl = Command::new("openssl");
        openssl
            .current_dir(self.dir.path())
            .args(args)
            .stdin(Stdio::null());
        output_of(&mut openssl).map_err(|e| format!("openssl {}: {e}", args.join(" ")).into())
    }

    pub fn key(&self, file: &str) -> Result<PathBuf, Failed> {
        self.run(&[
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            file,
        ])?;
        Ok(self.path(file))
    }

    /// A request in PEM.
    pub fn request(&self, key: &str, subject: &str, alt_names: &str) -> Result<String, Failed> {
        let names = format!("subjectAltName={alt_names}");
        let mut args = vec!["req", "-new", "-utf8", "-key", key, "-subj", subject];
        if !alt_names.is_empty() {
            args.extend(["-addext", &names]);
        }
        self.run(&args)
    }

    /// kubectl with these credentials.
    pub fn kubectl(&self, credentials: &Credentials, args: &[&str]) -> Result<String, String> {
        let mut kubectl = Command::new("kubectl");
        kubectl.args(["--kubeconfig", "/dev/null", "--server", &self.server]);
        kubectl.args(["--insecure-skip-tls-verify", "--request-timeout=20s"]);
        match credentials {
            Credentials::Token(token) => kubectl.args(["--token", token]),
            Credentials::Certificate { certificate, key } => kubectl
                .arg("--client-certificate")
                .arg(certificate)
                .arg("--client-key")
                .arg(key),
        };
        kubectl
            .env("KUBECACHEDIR", self.path("kubecache"))
            .stdin(Stdio::null());
        output_of(kubectl.args(args)).map_err(|e| e.to_string())
    }

    /// Creates the object of a manifest with these credentials.
    pub fn create(&self, credentials: &Credentials, manifest: &str) -> Result<String, String> {
        let path = self.path("manifest.yaml");
        std::fs::write(&path, manifest).map_err(|e| e.to_string())?;
        self.kubectl(credentials, &["create", "-f", &path.display().to_string()])
    }

    /// Whether openssl verifies that this CA signed the certificate, for any usage.
    pub fn verifies(&self, ca: &Path, certificate: &Path) -> bool {
        let (ca, certificate) = (ca.display().to_string(), certificate.display().to_string());
        self.run(&["verify", "-CAfile", &ca, &certificate]).is_ok()
    }
}

/// A CertificateSigningRequest.
pub fn csr(name: &str, signer: &str, usages: [&str; 2], pem: &str) -> String {
    use base64::Engine;
    let request = base64::engine::general_purpose::STANDARD.encode(pem);
    let [first, second] = usages;
    format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{ name: {name} }}\n\
         spec:\n  signerName: {signer}\n  usages: [{first}, {second}]\n  request: {request}\n"
    )
}
