//! CustomResourceDefinitions of knarr's own kinds, which control loops create when they start.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::custom::conditions::is_established;
use knarr_api::k8s_openapi;
use knarr_client::{Api, Error, TypedApi};

/// Creates or updates the definitions. `Ok` once they are established.
pub(crate) async fn establish(
    api: &dyn Api,
    definitions: impl IntoIterator<Item = CustomResourceDefinition>,
) -> Result<(), Error> {
    for definition in definitions {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let there = match api.get_as::<CustomResourceDefinition>("", &name).await {
            Err(error) if error.is_not_found() => api.create_as(definition).await?,
            Err(error) => return Err(error),
            Ok(there) if there.spec.versions == definition.spec.versions => there,
            Ok(there) => {
                let mut changed = (*there).clone();
                changed.spec.versions = definition.spec.versions;
                if changed == *there {
                    there
                } else {
                    api.update_as(changed).await?
                }
            }
        };
        if !is_established(&there) {
            return Err(Error::conflict(
                there.object().kind().resource_ref(&name),
                "it is not established",
            ));
        }
    }
    Ok(())
}
