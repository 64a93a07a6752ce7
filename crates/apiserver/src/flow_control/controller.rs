//! The controller of priority and fairness: restores the mandatory FlowSchemas and priority levels, classifies requests by those that exist, and
//! sets the condition Dangling of each FlowSchema.

use std::sync::{Arc, Weak};

use k8s_openapi::api::flowcontrol::v1::{FlowSchema, FlowSchemaCondition};
use knarr_api::registry::Registered;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::time::seconds;

use super::{FlowControl, lending, objects};
use crate::cache::change::Filter;
use crate::loopback::LoopbackClient;
use crate::request::Target;

const FIELD_MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Adjusts the seats of all levels periodically.
pub(crate) async fn adjust_seats(controller: Weak<FlowControlController>) {
    loop {
        tokio::time::sleep(lending::ADJUST_EVERY).await;
        let Some(controller) = controller.upgrade() else {
            return;
        };
        controller.flow_control.adjust_seats();
    }
}

/// Watches FlowSchemas and PriorityLevelConfigurations, and sets the condition Dangling of each FlowSchema.
pub(crate) async fn run_flow_control(controller: Weak<FlowControlController>) {
    loop {
        let Some(strong) = controller.upgrade() else {
            return;
        };
        let watch = |kind| {
            strong
                .client
                .cache()
                .of(kind)?
                .subscribe(&Filter::everything(kind, ""), None)
        };
        let watched = watch(&registry::FLOW_SCHEMA)
            .and_then(|schemas| Ok((schemas, watch(&registry::PRIORITY_LEVEL_CONFIGURATION)?)));
        let (mut schemas, mut levels) = match watched {
            Ok((schemas, levels)) => (schemas.changes, levels.changes),
            Err(e) => {
                tracing::error!("cannot watch FlowSchemas: {e}");
                return;
            }
        };
        strong.sync().await;
        drop(strong);
        loop {
            let changed = tokio::select! {
                biased;
                change = schemas.recv() => change.is_some(),
                change = levels.recv() => change.is_some(),
            };
            if !changed {
                break;
            }
            // Changes that have come in between are handled together.
            while schemas.try_recv().is_ok() || levels.try_recv().is_ok() {}
            let Some(strong) = controller.upgrade() else {
                return;
            };
            strong.sync().await;
        }
    }
}

/// The mandatory objects, which are restored when they are deleted or changed.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// Restores the mandatory objects, and keeps [`FlowControl`] up to date. See the module.
pub(crate) struct FlowControlController {
    pub client: LoopbackClient,
    pub flow_control: Arc<FlowControl>,
}

impl FlowControlController {
    async fn sync(&self) {
        for (kind, document) in objects() {
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            if MANDATORY.contains(&name)
                && let Err(e) = self.client.ensure(kind, document.clone()).await
            {
                tracing::warn!("cannot restore the mandatory {} {name}: {e}", kind.kind());
            }
        }
        self.reload();
        self.update_dangling_conditions().await;
    }

    /// Classifies requests by the FlowSchemas and PriorityLevelConfigurations in the cache from now on.
    pub fn reload(&self) {
        let levels = self.client.list(&registry::PRIORITY_LEVEL_CONFIGURATION);
        self.flow_control
            .reload(&self.client.list(&registry::FLOW_SCHEMA), &levels);
    }

    async fn update_dangling_conditions(&self) {
        for object in self.client.list(&registry::FLOW_SCHEMA) {
            let Some(schema) = object.get::<FlowSchema>() else {
                continue;
            };
            let level = schema
                .spec
                .as_ref()
                .map(|s| s.priority_level_configuration.name.as_str());
            let level = level.unwrap_or_default();
            let found = self
                .client
                .get(&registry::PRIORITY_LEVEL_CONFIGURATION, "", level)
                .is_some();
            let mut desired = condition(level, found);
            if condition_of(schema).is_some_and(|c| {
                (&c.status, &c.reason, &c.message) == (&desired.status, &desired.reason, &desired.message)
            }) {
                continue;
            }
            desired.last_transition_time = Some(seconds(self.client.now()));
            let target = Target {
                subresource: "status",
                ..Target::main(&registry::FLOW_SCHEMA, "", object.name())
            };
            let result = self
                .client
                .update_as(FIELD_MANAGER, &target, &mut |_, old| {
                    let mut schema: FlowSchema = old
                        .to_typed()
                        .ok_or_else(|| Error::internal("a FlowSchema could not be decoded"))?;
                    let conditions = schema
                        .status
                        .get_or_insert_default()
                        .conditions
                        .get_or_insert_default();
                    conditions.retain(|c| c.type_.as_deref() != Some(DANGLING));
                    conditions.push(desired.clone());
                    Ok(schema.into_object())
                })
                .await;
            match result {
                // It may have been deleted meanwhile.
                Err(e) if !e.is_not_found() => {
                    tracing::warn!(
                        "cannot update the condition Dangling of FlowSchema {}: {e}",
                        object.name()
                    );
                }
                _ => {}
            }
        }
    }
}

const DANGLING: &str = "Dangling";

fn condition_of(schema: &FlowSchema) -> Option<&FlowSchemaCondition> {
    let mut conditions = schema.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|c| c.type_.as_deref() == Some(DANGLING))
}

fn condition(level: &str, found: bool) -> FlowSchemaCondition {
    let named = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = match found {
        true => ("False", "Found", format!("{named} and it exists")),
        false => ("True", "NotFound", format!("{named} but there is no such object")),
    };
    FlowSchemaCondition {
        type_: Some(DANGLING.into()),
        status: Some(status.into()),
        reason: Some(reason.into()),
        message: Some(message),
        ..FlowSchemaCondition::default()
    }
}
