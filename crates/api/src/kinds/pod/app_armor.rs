//! The deprecated AppArmor annotations of pods.

use k8s_openapi::api::core::v1::AppArmorProfile;

/// Prefix of the deprecated annotation for a container's AppArmor profile.
pub const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The profile that a deprecated AppArmor annotation means; `None` if it is invalid.
pub fn app_armor_profile(annotation: &str) -> Option<AppArmorProfile> {
    let profile = |type_: &str, localhost: Option<&str>| {
        Some(AppArmorProfile {
            type_: type_.into(),
            localhost_profile: localhost.map(Into::into),
        })
    };
    match annotation {
        "unconfined" => profile("Unconfined", None),
        "runtime/default" => profile("RuntimeDefault", None),
        _ => match annotation.strip_prefix("localhost/") {
            // The field does not accept a name with leading or trailing white space.
            Some(name) if !name.is_empty() && name.trim() == name && name.len() <= 4095 => {
                profile("Localhost", Some(name))
            }
            _ => None,
        },
    }
}
