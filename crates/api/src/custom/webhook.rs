//! The conversion webhook of a definition.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, WebhookClientConfig,
};

/// The versions of ConversionReview that this server writes.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The webhook of a definition.
#[derive(Debug, PartialEq)]
pub struct Webhook {
    /// The name of the CustomResourceDefinition.
    pub definition: String,
    pub client: WebhookClientConfig,
    /// The first of the definition's versions that this server knows; `None` if it knows none.
    pub review_version: Option<&'static str>,
}

impl Webhook {
    /// `None` for the strategy None.
    pub(super) fn of(crd: &CustomResourceDefinition) -> Option<Arc<Webhook>> {
        let conversion: &CustomResourceConversion = crd.spec.conversion.as_ref()?;
        if conversion.strategy != "Webhook" {
            return None;
        }
        let webhook = conversion.webhook.as_ref()?;
        let mut versions = webhook.conversion_review_versions.iter();
        Some(Arc::new(Webhook {
            definition: crd.metadata.name.clone().unwrap_or_default(),
            client: webhook.client_config.clone().unwrap_or_default(),
            review_version: versions.find_map(|v| REVIEW_VERSIONS.into_iter().find(|known| known == v)),
        }))
    }
}
