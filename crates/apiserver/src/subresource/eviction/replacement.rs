//! The executing half of surge-first evictions (SPEC B6): reads what [`surge`](super::surge) decides from, records the request on the pod, and
//! responds 429 while the pod waits for its replacement.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kinds::pod::is_ready;
use knarr_api::kinds::pod::surge_first::{SURGE_FIRST, record_eviction_request};
use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_client::Preconditions;

use super::served::Served;
use super::surge::{Decision, Known, OptIn, Wait, decide, opt_in};
use super::{add_cause, can_ignore_pdb, decoded};
use crate::cache::change::Filter;
use crate::pipeline::Pipeline;
use crate::pipeline::preconditions::check_preconditions;
use crate::request::{Ctx, Target};

/// The Retry-After of an eviction that waits for a replacement. client-go retries up to ten times by itself before `kubectl drain` gets the
/// response, prints it and retries after 5 s. All these times together must be shorter than a usual `--request-timeout`, because when that
/// has passed kubectl does not get the response and gives up.
const SURGE_RETRY_SECONDS: i32 = 1;

impl Pipeline {
    /// Answers 429 while a pod that has opted in waits for a replacement (SPEC B6).
    pub(super) async fn surge_first(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        pod: &Pod,
        preconditions: &Preconditions,
    ) -> Result<(), Error> {
        if opt_in(pod) == OptIn::No {
            return Ok(());
        }
        // The decision follows from what every server had written before the request.
        let current = self.get_now(ctx, target).await?;
        check_preconditions(target.kind, preconditions, &current)?;
        let pod: &Pod = decoded(&current)?;
        if can_ignore_pdb(pod) || !is_ready(pod) {
            return Ok(());
        }
        let owner = match opt_in(pod) {
            OptIn::No => return Ok(()),
            OptIn::NotSupported(warning) => {
                ctx.warn(warning);
                return Ok(());
            }
            OptIn::By(owner) => owner,
        };
        let Some(set) = self
            .cache
            .get(&registry::REPLICA_SET, target.namespace, &owner.name)
            .filter(|set| set.uid() == owner.uid)
        else {
            return Ok(());
        };
        let objects = self.pods_of(&set)?;
        let pods: Vec<&Pod> = objects.iter().filter_map(|object| object.get::<Pod>()).collect();
        let served = self.served(target.namespace)?;
        let decision = decide(&Known {
            pod,
            set: decoded(&set)?,
            pods: &pods,
            unserved: &|pod: &Pod| served.unserved(pod),
            now: ctx.now,
        });
        let wait = match decision {
            Decision::Proceed => return Ok(()),
            Decision::Wait(wait) => wait,
            Decision::Record(wait) => {
                if !ctx.dry_run {
                    self.record_eviction_request(ctx, target, &current, preconditions)
                        .await?;
                }
                wait
            }
        };
        Err(not_replaced(&wait))
    }

    async fn record_eviction_request(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        pod: &Object,
        preconditions: &Preconditions,
    ) -> Result<(), Error> {
        let status = Target {
            subresource: "status",
            ..*target
        };
        let preconditions = Preconditions {
            uid: Some(pod.uid().to_string()),
            resource_version: preconditions.resource_version.clone(),
        };
        self.update(ctx, &status, &preconditions, &mut |ctx, old| {
            let mut pod: Pod = decoded::<Pod>(old)?.clone();
            record_eviction_request(&mut pod, ctx.now);
            Ok(pod.into_object())
        })
        .await?;
        Ok(())
    }

    fn pods_of(&self, set: &Object) -> Result<Vec<Arc<Object>>, Error> {
        let mut pods = Vec::new();
        self.cache
            .of(&registry::POD)?
            .scan(set.namespace(), "", |object| {
                let owners = object.metadata().owner_references.as_deref().unwrap_or_default();
                if owners
                    .iter()
                    .any(|o| o.controller == Some(true) && o.uid == set.uid())
                {
                    pods.push(object.clone());
                }
                true
            });
        Ok(pods)
    }

    fn served(&self, namespace: &str) -> Result<Served, Error> {
        let all = |kind: &Kind| -> Result<Vec<Arc<Object>>, Error> {
            Ok(self.cache.of(kind)?.list(&Filter::everything(kind, namespace)))
        };
        Ok(Served {
            services: all(&registry::SERVICE)?,
            slices: all(&registry::ENDPOINT_SLICE)?,
        })
    }
}

fn not_replaced(wait: &Wait) -> Error {
    let mut error = Error::too_many_requests(
        format!("Cannot evict pod before it is replaced: {wait}."),
        SURGE_RETRY_SECONDS,
    );
    add_cause(SURGE_FIRST, &mut error, wait.to_string());
    error
}
