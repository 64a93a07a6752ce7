//! One-layer images in the form of `docker save`: a layer, a configuration and a manifest in a tar.
//!
//! Byte for byte the same for the same content, so that importing twice changes nothing.

use std::io;

use serde_json::json;
use sha2::{Digest, Sha256};

/// What an image is made of.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Reference with registry and tag.
    pub name: String,
    pub files: Vec<ImageFile>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<String>,
    /// The stop signal, such as `SIGINT`; empty for TERM.
    pub stop_signal: String,
}

/// A file of the layer; paths have no leading slash.
#[derive(Clone, Debug)]
pub struct ImageFile {
    path: String,
    mode: u32,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    Link(String),
    Dir,
}

impl ImageFile {
    pub fn program(path: &str, bytes: Vec<u8>) -> Self {
        ImageFile {
            path: path.into(),
            mode: 0o755,
            content: Content::Bytes(bytes),
        }
    }

    pub fn text(path: &str, text: &str) -> Self {
        ImageFile {
            path: path.into(),
            mode: 0o644,
            content: Content::Bytes(text.into()),
        }
    }

    pub fn link(path: &str, target: &str) -> Self {
        ImageFile {
            path: path.into(),
            mode: 0o777,
            content: Content::Link(target.into()),
        }
    }

    pub fn dir(path: &str, mode: u32) -> Self {
        ImageFile {
            path: path.into(),
            mode,
            content: Content::Dir,
        }
    }
}

impl Image {
    /// The archive, as `docker load` and `ctr images import` read it.
    pub fn archive(&self) -> io::Result<Vec<u8>> {
        let layer = self.layer()?;
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let mut config = json!({ "Entrypoint": self.entrypoint, "Cmd": self.command, "Env": self.env });
        if !self.stop_signal.is_empty() {
            config["StopSignal"] = json!(self.stop_signal);
        }
        let config = serde_json::to_vec(&json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex_sha256(&layer))] },
        }))?;
        let config_name = format!("{}.json", hex_sha256(&config));
        let manifest = serde_json::to_vec(&json!([{
            "Config": config_name, "RepoTags": [self.name], "Layers": ["layer.tar"],
        }]))?;
        let mut tar = tar::Builder::new(Vec::new());
        for (name, bytes) in [
            ("layer.tar", &layer),
            (config_name.as_str(), &config),
            ("manifest.json", &manifest),
        ] {
            append(
                &mut tar,
                &ImageFile {
                    path: name.into(),
                    mode: 0o644,
                    content: Content::Bytes(bytes.clone()),
                },
            )?;
        }
        tar.into_inner()
    }

    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut dirs = std::collections::BTreeSet::new();
        for file in &self.files {
            // Parents first, each once.
            for (slash, _) in file.path.match_indices('/') {
                if dirs.insert(file.path[..slash].to_string()) {
                    append(&mut tar, &ImageFile::dir(&file.path[..slash], 0o755))?;
                }
            }
            if matches!(file.content, Content::Dir) && !dirs.insert(file.path.clone()) {
                continue;
            }
            append(&mut tar, file)?;
        }
        tar.into_inner()
    }
}

fn append(tar: &mut tar::Builder<Vec<u8>>, file: &ImageFile) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(file.mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    match &file.content {
        Content::Bytes(bytes) => {
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, &file.path, bytes.as_slice())
        }
        Content::Link(target) => {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            tar.append_link(&mut header, &file.path, target)
        }
        Content::Dir => {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            tar.append_data(&mut header, format!("{}/", file.path), io::empty())
        }
    }
}

fn hex_sha256(bytes: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Whether these bytes are a 64-bit ELF program without an interpreter (no PT_INTERP).
pub fn is_static_elf(bytes: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    const PROGRAM_HEADER_BYTES: usize = 56;
    let u64_at = |at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|b| b.try_into().ok())
            .map(u64::from_le_bytes)
    };
    let u16_at = |at: usize| {
        bytes
            .get(at..at + 2)
            .and_then(|b| b.try_into().ok())
            .map(u16::from_le_bytes)
    };
    let u32_at = |at: usize| {
        bytes
            .get(at..at + 4)
            .and_then(|b| b.try_into().ok())
            .map(u32::from_le_bytes)
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    let (Some(table), Some(count)) = (u64_at(32), u16_at(56)) else {
        return false;
    };
    let Ok(table) = usize::try_from(table) else {
        return false;
    };
    (0..usize::from(count)).all(|i| u32_at(table + i * PROGRAM_HEADER_BYTES).is_some_and(|t| t != PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            name: "a/b:1".into(),
            files: vec![
                ImageFile::program("bin/x", b"x".to_vec()),
                ImageFile::link("bin/y", "x"),
                ImageFile::dir("tmp", 0o1777),
            ],
            ..Image::default()
        }
    }

    #[test]
    fn the_archive_names_its_layer_by_the_digest_of_its_bytes() {
        let bytes = image().archive().unwrap();
        assert_eq!(
            bytes,
            image().archive().unwrap(),
            "the same content gives the same bytes"
        );
        let mut layer = Vec::new();
        let mut config = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let into = if name == "layer.tar" {
                &mut layer
            } else if name == "manifest.json" {
                continue;
            } else {
                &mut config
            };
            io::Read::read_to_end(&mut entry, into).unwrap();
        }
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", hex_sha256(&layer))
        );
        let mut layer = tar::Archive::new(layer.as_slice());
        let names: Vec<String> = layer
            .entries()
            .unwrap()
            .map(|e| e.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["bin/", "bin/x", "bin/y", "tmp/"]);
    }

    #[test]
    fn only_programs_without_an_interpreter_are_static() {
        assert!(!is_static_elf(b"#!/bin/sh"));
        assert!(
            !is_static_elf(&std::fs::read("/proc/self/exe").unwrap()),
            "a test binary is linked dynamically"
        );
    }
}
