//! Reads: one object, and lists with `resourceVersion`, `limit` and `continue`.

use std::sync::Arc;
use std::time::Duration;

use knarr_api::{Kind, Object, convert, fields, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::error::ResourceRef;
use knarr_apimachinery::field::{self, ErrorList};
use knarr_apimachinery::labels;
use knarr_store::{KeyRange, Range};

use super::Pipeline;
use super::continue_token::{ContinueToken, LATEST};
use crate::cache::change::Filter;
use crate::cache::{kind_of_stored, store_error};
use crate::keys;
use crate::request::{Ctx, Target};

/// How long a read waits until the cache has reached a resourceVersion.
const FUTURE_REVISION_WAIT: Duration = Duration::from_secs(3);
/// How many keys are read from the store at once for a list at an old revision.
const PAGE: usize = 500;

/// The options of a list, from the query.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    pub resource_version_match: String,
    pub limit: i64,
    pub continue_token: String,
    /// Whether `sendInitialEvents` is given, which only watches may have.
    pub sends_initial_events: bool,
}

/// The result of a list.
pub struct ListResult {
    pub revision: u64,
    pub items: Vec<Arc<Object>>,
    pub continue_token: String,
    pub remaining: Option<i64>,
}

/// The message for a token whose revision was compacted.
const INCONSISTENT: &str = "The provided continue parameter is too old to display a consistent list result. You can \
start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of \
the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
deleted between the time the first chunk was returned and now may show up in the list.";

impl Pipeline {
    pub(crate) fn filter(&self, kind: &Kind, namespace: &str, q: &ListQuery) -> Result<Filter, Error> {
        Ok(Filter {
            kind: kind.clone(),
            namespace: namespace.to_string(),
            labels: labels::Selector::parse(&q.label_selector)
                .map_err(|e| Error::bad_request(e.to_string()))?,
            fields: fields::Selector::parse(kind, &q.field_selector)?,
        })
    }

    /// One object, in the version of `kind`.
    pub(crate) fn get(&self, target: &Target<'_>) -> Result<Arc<Object>, Error> {
        convert::object(&self.found(target)?, target.kind)
    }

    fn found(&self, target: &Target<'_>) -> Result<Arc<Object>, Error> {
        let found = self.cache.get(target.kind, target.namespace, target.name);
        found.ok_or_else(|| {
            let mut about = target.resource_ref();
            if *target.kind == registry::COMPONENT_STATUS {
                // The only resource that Kubernetes names in the singular here.
                about.resource = target.kind.singular();
            }
            Error::not_found(about)
        })
    }

    /// Like [`Pipeline::get`], after the cache has caught up, see [`Pipeline::catch_up`].
    pub(crate) async fn get_now(&self, ctx: &mut Ctx, target: &Target<'_>) -> Result<Arc<Object>, Error> {
        self.catch_up(ctx).await?;
        let found = self.found(target)?;
        self.converter.object(&found, target.kind).await
    }

    /// One current object, in the version in which the request is handled: the beginning of every write.
    pub(crate) async fn stored(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
    ) -> Result<Option<Arc<Object>>, Error> {
        self.catch_up(ctx).await?;
        match self.cache.get(target.kind, target.namespace, target.name) {
            Some(found) if target.kind.is_converted_by_webhook() => {
                self.converter.object(&found, target.kind).await.map(Some)
            }
            found => Ok(found.map(|found| ctx.as_read(found))),
        }
    }

    /// Where other servers write to the same store, waits until the cache has caught up with the store: a request sees every write
    /// that was acknowledged before it, by any server. A server that is cut off from its store
    /// does not answer from memory (a volume or name released for a node that "does not exist" may be in use: SPEC S2, S5),
    /// and rejects no write because of a stale cache: a kubelet that gets 404 for its pod writes no status again.
    ///
    /// Once per request: the cache has the request's own writes when they are acknowledged, and a write with a stale revision fails and
    /// waits for the newer one.
    pub(crate) async fn catch_up(&self, ctx: &mut Ctx) -> Result<(), Error> {
        if !ctx.caught_up {
            self.wait_until_caught_up().await?;
            ctx.caught_up = true;
        }
        Ok(())
    }

    /// The same for reads that have no request context.
    pub(crate) async fn wait_until_caught_up(&self) -> Result<(), Error> {
        let store = self.cache.store();
        if !store.is_shared() {
            return Ok(());
        }
        let newest = store.revision().await.map_err(store_error)?;
        self.wait_for_revision(newest).await
    }

    /// The kind of a resource; `None` if it is not served. A definition may have been established through another server:
    /// 404 would say that its objects do not exist, which the garbage collector and users rely on.
    pub(crate) async fn kind_of_resource(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Result<Option<Kind>, Error> {
        let served = || self.cache.served().by_resource(group, version, plural);
        if let Some(kind) = served() {
            return Ok(Some(kind));
        }
        self.wait_until_caught_up().await?;
        Ok(served())
    }

    pub(crate) async fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        q: &ListQuery,
    ) -> Result<ListResult, Error> {
        validate(q)?;
        let selects = self.filter(kind, namespace, q)?;
        // A webhook may change the fields of selectors: objects are selected after their conversion.
        let selects_later = kind.is_converted_by_webhook() && selects.selects();
        let filter = match selects_later {
            true => Filter::everything(kind, namespace),
            false => selects.clone(),
        };
        let requested_limit = usize::try_from(q.limit).unwrap_or(0);
        let limit = if selects_later { 0 } else { requested_limit };
        let requested_revision = parse_revision(&q.resource_version)?;
        let mut listed = if !q.continue_token.is_empty() {
            let token = ContinueToken::parse(&q.continue_token)?;
            if requested_revision.is_some_and(|v| v != 0) {
                return Err(Error::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            self.list_on(&filter, &token, limit).await?
        } else if let (Some(at @ 1..), "Exact") = (requested_revision, q.resource_version_match.as_str()) {
            self.list_at(&filter, at, "", limit).await?
        } else {
            match requested_revision {
                Some(at) => self.wait_for_revision(at).await?,
                None => self.wait_until_caught_up().await?,
            }
            // A list at resourceVersion 0 comes from memory and ignores its limit.
            let limit = if requested_revision == Some(0) { 0 } else { limit };
            self.list_now(&filter, limit)?
        };
        self.converter.all(&mut listed.items, kind).await?;
        if !selects_later {
            return Ok(listed);
        }
        let limit = if requested_revision == Some(0) {
            0
        } else {
            requested_limit
        };
        let mut page = Page::new(&selects, limit);
        for item in &listed.items {
            if !page.take(item) {
                break;
            }
        }
        Ok(page.finish(listed.revision))
    }

    /// Waits for a limited time until the cache has reached a revision.
    pub(crate) async fn wait_for_revision(&self, at: u64) -> Result<(), Error> {
        // Most requests find it so, and need no timer.
        if self.cache.revision() >= at {
            return Ok(());
        }
        if tokio::time::timeout(FUTURE_REVISION_WAIT, self.cache.wait_for(at))
            .await
            .is_err()
        {
            return Err(too_large(at, self.cache.revision()));
        }
        Ok(())
    }

    fn list_now(&self, filter: &Filter, limit: usize) -> Result<ListResult, Error> {
        // Read before the objects: all kinds are at least at this revision, and this one at its own last change.
        let revision = self.cache.revision();
        let mut page = Page::new(filter, limit);
        let newest = self
            .cache
            .of(&filter.kind)?
            .scan_for(filter, |object| page.take(object));
        Ok(page.finish(revision.max(newest)))
    }

    /// The next page of a list. If its revision was compacted, the error has a token with which the rest can be read
    /// at the current revision.
    async fn list_on(
        &self,
        filter: &Filter,
        token: &ContinueToken,
        limit: usize,
    ) -> Result<ListResult, Error> {
        let at = match u64::try_from(token.rv) {
            Ok(at) => at,
            Err(_) => {
                self.wait_until_caught_up().await?;
                self.cache.revision()
            }
        };
        let page = self.list_at(filter, at, &token.start, limit).await;
        page.map_err(|error| {
            if !error.is_expired() {
                return error;
            }
            let mut error = Error::expired(INCONSISTENT);
            let rest = ContinueToken {
                rv: LATEST,
                ..ContinueToken::from(&token.start)
            };
            error.status_mut().metadata.continue_ = Some(rest.render());
            error
        })
    }

    /// A list at revision `at`, from the key `start` on; objects that the cache still has at that revision are shared.
    async fn list_at(
        &self,
        filter: &Filter,
        at: u64,
        start: &str,
        limit: usize,
    ) -> Result<ListResult, Error> {
        let cache = self.cache.of(&filter.kind)?;
        let prefix = keys::prefix(&cache.kind);
        let mut range = KeyRange::prefix(if filter.namespace.is_empty() {
            prefix.clone()
        } else {
            format!("{prefix}{}/", filter.namespace)
        });
        if !start.is_empty() {
            range.start = [&range.start[..], start.as_bytes()].concat().into();
        }
        let mut page = Page::new(filter, limit);
        loop {
            let request = Range {
                keys: range.clone(),
                at: Some(at),
                limit: PAGE,
                count_only: false,
            };
            let found = self.cache.store().range(request).await.map_err(|e| match e {
                knarr_store::Error::FutureRevision { requested, newest } => too_large(requested, newest),
                other => store_error(other),
            })?;
            for kv in &found.kvs {
                let Some((_, local)) = keys::split(&kv.key) else {
                    continue;
                };
                let object = match cache.get(local).filter(|o| o.revision() == kv.mod_revision) {
                    Some(shared) => shared,
                    None => match self
                        .cache
                        .decrypted(&cache.kind, &kv.key, &kv.value)
                        .and_then(|value| {
                            let kind = kind_of_stored(&cache.kind, &value);
                            let decoded = kind.ops.decode(&value);
                            let typed = decoded.map_err(|e| Error::internal(e.message))?.object;
                            Ok(Object::from_stored(&kind, typed, &value, kv.mod_revision))
                        }) {
                        Ok(object) => Arc::new(object),
                        Err(e) => {
                            tracing::error!(key = %kv.key.escape_ascii(), "skipped an object that cannot be decoded: {e}");
                            continue;
                        }
                    },
                };
                if !page.take(&object) {
                    return Ok(page.finish(at));
                }
            }
            match found.kvs.last() {
                Some(last) if found.more => range.start = [&last.key[..], b"\0"].concat().into(),
                _ => return Ok(page.finish(at)),
            }
        }
    }
}

/// Collects one page of a list.
struct Page<'a> {
    filter: &'a Filter,
    limit: usize,
    items: Vec<Arc<Object>>,
    remaining: i64,
}

impl<'a> Page<'a> {
    fn new(filter: &'a Filter, limit: usize) -> Self {
        Page {
            filter,
            limit,
            items: Vec::new(),
            remaining: 0,
        }
    }

    /// Whether to continue.
    fn take(&mut self, object: &Arc<Object>) -> bool {
        if !self.filter.matches(object) {
            return true;
        }
        if self.limit > 0 && self.items.len() == self.limit {
            self.remaining += 1;
            // With selectors the remaining items are not counted, as in Kubernetes.
            return !self.filter.selects();
        }
        self.items.push(object.clone());
        true
    }

    fn finish(self, revision: u64) -> ListResult {
        let continue_token = match self.items.last() {
            Some(last) if self.remaining > 0 => ContinueToken {
                rv: i64::try_from(revision).unwrap_or(LATEST),
                ..ContinueToken::from(&match self.filter.namespace.is_empty() {
                    true => format!("{}\0", keys::local(last.namespace(), last.name())),
                    false => format!("{}\0", last.name()),
                })
            }
            .render(),
            _ => String::new(),
        };
        ListResult {
            revision,
            items: self.items,
            continue_token,
            remaining: (self.remaining > 0 && !self.filter.selects()).then_some(self.remaining),
        }
    }
}

fn too_large(requested: u64, newest: u64) -> Error {
    let mut error = Error::timeout(format!(
        "Timeout: Too large resource version: {requested}, current: {newest}"
    ));
    let details = error.status_mut().details.get_or_insert_default();
    details.retry_after_seconds = Some(1);
    details.causes = Some(vec![
        knarr_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause {
            reason: Some("ResourceVersionTooLarge".into()),
            message: Some("Too large resource version".into()),
            field: None,
        },
    ]);
    error
}

/// `None` if unset.
pub(crate) fn parse_revision(text: &str) -> Result<Option<u64>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| Error::bad_request(format!("invalid resource version: {}", bad_revision(text))))
}

pub(crate) fn bad_revision(text: &str) -> String {
    format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
}

pub(crate) fn invalid_options(kind: &str, errors: &ErrorList) -> Error {
    let about = ResourceRef {
        group: "meta.k8s.io",
        resource: kind,
        name: "",
    };
    Error::invalid(about, errors)
}

const MATCHES: [&str; 3] = ["Exact", "NotOlderThan", ""];

fn validate(q: &ListQuery) -> Result<(), Error> {
    let mut errors = ErrorList::new();
    validate_match(q, &mut errors);
    if q.sends_initial_events {
        errors.forbidden(
            &field::Path::new("sendInitialEvents"),
            "sendInitialEvents is forbidden for list",
        );
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(invalid_options("ListOptions", &errors))
    }
}

fn validate_match(q: &ListQuery, errors: &mut ErrorList) {
    let path = field::Path::new("resourceVersionMatch");
    let m = q.resource_version_match.as_str();
    if m.is_empty() {
        return;
    }
    if q.resource_version.is_empty() {
        errors.forbidden(
            &path,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        );
    }
    if !q.continue_token.is_empty() {
        errors.forbidden(
            &path,
            "resourceVersionMatch is forbidden when continue is provided",
        );
    }
    if !MATCHES.contains(&m) {
        errors.push(unsupported_match(m));
    }
    if m == "Exact" && q.resource_version == "0" {
        errors.forbidden(
            &path,
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        );
    }
}

/// The supported values in Kubernetes' order, which is not sorted.
fn unsupported_match(found: &str) -> field::FieldError {
    field::FieldError {
        cause: field::Cause::NotSupported,
        field: "resourceVersionMatch".into(),
        value: Some(format!("{found:?}")),
        detail: "supported values: \"Exact\", \"NotOlderThan\", \"\"".into(),
    }
}
