//! Warnings about volumes: deprecated types, and files of one volume at the same path.

use k8s_openapi::api::core::v1::{KeyToPath, PodSpec, Volume};
use knarr_apimachinery::field::Path;

use super::{fraction_warning, is_fraction};
use crate::kinds::pod::text;

pub(super) fn volumes(spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    for (i, v) in volumes.iter().enumerate() {
        let deprecated = [
            (
                v.photon_persistent_disk.is_some(),
                "photonPersistentDisk",
                "deprecated in v1.11, non-functional in v1.16+",
            ),
            (
                v.git_repo.is_some(),
                "gitRepo",
                "deprecated in v1.11, and disabled by default in v1.33+",
            ),
            (
                v.scale_io.is_some(),
                "scaleIO",
                "deprecated in v1.16, non-functional in v1.22+",
            ),
            (
                v.flocker.is_some(),
                "flocker",
                "deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                v.storageos.is_some(),
                "storageOS",
                "deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                v.quobyte.is_some(),
                "quobyte",
                "deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                v.glusterfs.is_some(),
                "glusterfs",
                "deprecated in v1.25, non-functional in v1.26+",
            ),
            (
                v.cephfs.is_some(),
                "cephfs",
                "deprecated in v1.28, non-functional in v1.31+",
            ),
            (
                v.rbd.is_some(),
                "rbd",
                "deprecated in v1.28, non-functional in v1.31+",
            ),
        ];
        for (_, field, deprecation) in deprecated.into_iter().filter(|(is_set, ..)| *is_set) {
            warnings.push(format!("{}: {deprecation}", path.index(i).child(field)));
        }
        let template = v
            .ephemeral
            .as_ref()
            .and_then(|e| e.volume_claim_template.as_ref());
        if let Some(resources) = template.and_then(|t| t.spec.resources.as_ref()) {
            let at = path
                .index(i)
                .child("ephemeral")
                .child("volumeClaimTemplate")
                .child("spec");
            for (field, list) in [("requests", &resources.requests), ("limits", &resources.limits)] {
                let storage = list.as_ref().and_then(|l| l.get("storage"));
                if let Some(amount) = storage.filter(|q| is_fraction(q)) {
                    let at = at.child("resources").child(field).key("storage");
                    warnings.push(fraction_warning(&at, amount));
                }
            }
        }
    }
    for volume in volumes {
        overlapping_paths(volume, warnings);
    }
}

/// A file of a volume and its source.
struct Target<'a> {
    path: &'a str,
    from: String,
}

impl Target<'_> {
    fn shown(&self) -> String {
        if self.from.is_empty() {
            format!("{:?}", self.path)
        } else {
            format!("{:?} ({})", self.path, self.from)
        }
    }
}

/// Warns about two files at one path, or a file whose path is a directory of another file.
fn overlapping_paths(volume: &Volume, warnings: &mut Vec<String>) {
    fn keys<'a>(items: Option<&'a Vec<KeyToPath>>, from: &str) -> Vec<Target<'a>> {
        let target = |item: &'a KeyToPath| Target {
            path: item.path.as_str(),
            from: from.to_string(),
        };
        items.into_iter().flatten().map(target).collect()
    }
    fn files<'a>(
        items: Option<&'a Vec<k8s_openapi::api::core::v1::DownwardAPIVolumeFile>>,
        from: &str,
    ) -> Vec<Target<'a>> {
        let target = |item: &'a k8s_openapi::api::core::v1::DownwardAPIVolumeFile| Target {
            path: item.path.as_str(),
            from: from.to_string(),
        };
        items.into_iter().flatten().map(target).collect()
    }
    if let Some(v) = &volume.config_map {
        let of = format!("ConfigMap {:?}", v.name);
        overlaps(&volume.name, &of, keys(v.items.as_ref(), ""), warnings);
    }
    if let Some(v) = &volume.secret {
        let of = format!("Secret {:?}", text(&v.secret_name));
        overlaps(&volume.name, &of, keys(v.items.as_ref(), ""), warnings);
    }
    if let Some(v) = &volume.downward_api {
        overlaps(&volume.name, "DownwardAPI", files(v.items.as_ref(), ""), warnings);
    }
    let mut all = Vec::new();
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if *source == Default::default() {
            warnings.push(format!(
                "volume {:?} (Projected) has no sources provided",
                volume.name
            ));
        } else if let Some(v) = &source.config_map {
            all.extend(keys(v.items.as_ref(), &format!("ConfigMap {:?}", v.name)));
        } else if let Some(v) = &source.secret {
            all.extend(keys(v.items.as_ref(), &format!("Secret {:?}", v.name)));
        } else if let Some(v) = &source.downward_api {
            all.extend(files(v.items.as_ref(), "DownwardAPI"));
        } else if let Some(v) = &source.service_account_token {
            all.push(Target {
                path: &v.path,
                from: "ServiceAccountToken".into(),
            });
        }
    }
    overlaps(&volume.name, "Projected", all, warnings);
}

fn overlaps(volume: &str, of: &str, mut targets: Vec<Target<'_>>, warnings: &mut Vec<String>) {
    for target in &mut targets {
        target.path = target.path.trim_end_matches('/');
    }
    let inside =
        |path: &str, of: &str| path == of || path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
    for (i, target) in targets.iter().enumerate().filter(|(_, t)| !t.path.is_empty()) {
        for other in targets[..i].iter().filter(|t| !t.path.is_empty()) {
            if inside(target.path, other.path) || inside(other.path, target.path) {
                warnings.push(format!(
                    "volume {volume:?} ({of}): overlapping paths: {} with {}",
                    target.shown(),
                    other.shown()
                ));
            }
        }
    }
}
