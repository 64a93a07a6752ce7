//! Compares pod templates: equality without the hash label, and the hash itself.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use knarr_api::k8s_openapi;
use knarr_api::kinds::template;

/// The label that distinguishes the pods of one template from those of another.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Whether two templates are equal but for the hash label (upstream: EqualIgnoreHash).
pub fn equal_ignoring_hash(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    a.spec == b.spec && without_hash(a) == without_hash(b)
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut metadata = template.metadata.clone().unwrap_or_default();
    if let Some(labels) = &mut metadata.labels {
        labels.remove(POD_TEMPLATE_HASH);
    }
    metadata.labels = metadata.labels.filter(|l| !l.is_empty());
    metadata.annotations = metadata.annotations.filter(|a| !a.is_empty());
    metadata.creation_timestamp = None;
    PodTemplateSpec {
        metadata: Some(metadata),
        spec: None,
    }
}

/// The hash of a template: stable over restarts, different after a collision.
pub fn hash(template: &PodTemplateSpec, collisions: i32) -> String {
    let template = PodTemplateSpec {
        spec: template.spec.clone(),
        ..without_hash(template)
    };
    // Fields are written in the schema's order and maps sorted: equal templates give equal bytes.
    let text = match template::to_string(&template) {
        Ok(text) => text,
        Err(e) => unreachable!("a typed template always encodes: {e}"),
    };
    let mut hash = Fnv32a::default();
    hash.write(text.as_bytes());
    if collisions != 0 {
        hash.write(&collisions.to_le_bytes());
    }
    encode_safely(hash.0)
}

/// FNV-1a, 32 bits.
struct Fnv32a(u32);

impl Default for Fnv32a {
    fn default() -> Self {
        Fnv32a(0x811c_9dc5)
    }
}

impl Fnv32a {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// The decimal number in letters that form no words (Kubernetes' safe alphabet).
pub(crate) fn encode_safely(n: u32) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let digits = n.to_string().into_bytes();
    let letters = digits
        .into_iter()
        .map(|d| ALPHABET[usize::from(d) % ALPHABET.len()]);
    letters.map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn template(labels: &[(&str, &str)]) -> PodTemplateSpec {
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels.collect()),
                ..ObjectMeta::default()
            }),
            spec: None,
        }
    }

    #[test]
    fn the_hash_label_makes_no_difference_and_a_collision_does() {
        let plain = template(&[("app", "web")]);
        let labelled = template(&[("app", "web"), (POD_TEMPLATE_HASH, "abc")]);
        assert!(equal_ignoring_hash(&plain, &labelled));
        assert_eq!(hash(&plain, 0), hash(&labelled, 0));
        assert_ne!(hash(&plain, 0), hash(&plain, 1));
        assert_ne!(hash(&plain, 0), hash(&template(&[("app", "db")]), 0));
        assert!(!equal_ignoring_hash(&plain, &template(&[("app", "db")])));
    }

    #[test]
    fn the_alphabet_forms_no_words() {
        assert_eq!(encode_safely(0), "4");
        assert_eq!(encode_safely(1_234_567_890), "56789bcdf4");
    }
}
