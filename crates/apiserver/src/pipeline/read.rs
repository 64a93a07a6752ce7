//! Reads: one object, and lists with all that `resourceVersion`, `limit` and `continue` may say.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use knarr_api::error::About;
use knarr_api::field::{self, Errors};
use knarr_api::{Error, Kind, Object, convert, selector};
use knarr_store::{KeyRange, Range};
use serde::{Deserialize, Serialize};

use super::{Ctx, Target};
use crate::cache::change::Filter;
use crate::cache::store_error;
use crate::keys;
use crate::server::Server;

/// Go's decoder: padding is not wanted, stray last bits are not looked at.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// How long a read waits for a resourceVersion that has not come yet.
const FUTURE_REVISION_WAIT: Duration = Duration::from_secs(3);
/// How many pairs are asked of the store at once for a list at an old revision.
const PAGE: usize = 500;

/// A list's options, as the query gives them.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    pub resource_version_match: String,
    pub limit: i64,
    pub continue_token: String,
}

/// What a list found.
pub struct Listed {
    pub revision: u64,
    pub items: Vec<Arc<Object>>,
    pub continue_token: String,
    pub remaining: Option<i64>,
}

/// What a continue token says. Opaque to clients.
#[derive(Serialize, Deserialize)]
pub struct Continue {
    /// The revision all pages are of; [`LATEST`]: the one there is when the next page is asked for.
    rv: i64,
    /// The last key of the page before, as [`keys::local`].
    after: String,
}

/// What is said of a token whose revision is forgotten.
const INCONSISTENT: &str = "The provided continue parameter is too old to display a consistent list result. You can \
start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of \
the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
deleted between the time the first chunk was returned and now may show up in the list.";

/// The revision of a token for the rest of a list whose own revision is no longer kept.
const LATEST: i64 = -1;

impl Server {
    pub(crate) fn filter(&self, kind: &Kind, namespace: &str, q: &ListQuery) -> Result<Filter, Error> {
        Ok(Filter {
            kind: kind.clone(),
            namespace: namespace.to_string(),
            labels: selector::label::Selector::parse(&q.label_selector).map_err(Error::bad_request)?,
            fields: selector::field::Selector::parse(kind, &q.field_selector)?,
        })
    }

    /// One object, as `kind` shows it.
    pub(crate) fn get(&self, target: &Target<'_>) -> Result<Arc<Object>, Error> {
        let found = self.cache.get(target.kind, target.namespace, target.name);
        convert::object(
            &found.ok_or_else(|| Error::not_found(target.about()))?,
            target.kind,
        )
    }

    /// The same as it is now, see [`Server::catch_up`].
    pub(crate) async fn get_now(&self, ctx: &mut Ctx, target: &Target<'_>) -> Result<Arc<Object>, Error> {
        self.catch_up(ctx).await?;
        self.get(target)
    }

    /// One object as it is stored now: what every write begins with.
    pub(crate) async fn stored(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
    ) -> Result<Option<Arc<Object>>, Error> {
        self.catch_up(ctx).await?;
        Ok(self.cache.get(target.kind, target.namespace, target.name))
    }

    /// Where other servers write to the store too, waits until the cache has all that was there when the request came: a
    /// request sees every write that was answered before it, whoever answered. A server that is cut off from its store
    /// does not answer from memory (what is released because of a node that "is not there" may be running: SPEC S2, S5),
    /// and refuses no write for what it remembers: a kubelet that is told that its pod is gone writes no status again.
    ///
    /// Once in a request: what it writes itself the cache has when the write is answered, and a write that comes too late
    /// waits for what was written before it.
    pub(crate) async fn catch_up(&self, ctx: &mut Ctx) -> Result<(), Error> {
        if !ctx.caught_up {
            self.hear_all().await?;
            ctx.caught_up = true;
        }
        Ok(())
    }

    /// The same for what reads only.
    pub(crate) async fn hear_all(&self) -> Result<(), Error> {
        let store = self.cache.store();
        if !store.is_shared() {
            return Ok(());
        }
        let newest = store.revision().await.map_err(store_error)?;
        self.wait_for_revision(newest).await
    }

    pub(crate) async fn list(&self, kind: &Kind, namespace: &str, q: &ListQuery) -> Result<Listed, Error> {
        validate_match(q)?;
        let filter = self.filter(kind, namespace, q)?;
        let limit = usize::try_from(q.limit).unwrap_or(0);
        let wanted = parse_revision(&q.resource_version)?;
        let mut listed = if !q.continue_token.is_empty() {
            if wanted.is_some_and(|v| v != 0) {
                return Err(Error::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let token = Continue::parse(&q.continue_token)?;
            self.list_on(&filter, &token, limit).await?
        } else if let (Some(at @ 1..), "Exact") = (wanted, q.resource_version_match.as_str()) {
            self.list_at(&filter, at, "", limit).await?
        } else {
            match wanted {
                Some(at) => self.wait_for_revision(at).await?,
                None => self.hear_all().await?,
            }
            // A list at version 0 is whole, whatever its limit: it comes from memory.
            let limit = if wanted == Some(0) { 0 } else { limit };
            self.list_now(&filter, limit)?
        };
        for item in &mut listed.items {
            if item.kind() != kind {
                *item = convert::object(item, kind)?;
            }
        }
        Ok(listed)
    }

    /// Waits a little for a revision that the cache has not come to.
    pub(crate) async fn wait_for_revision(&self, at: u64) -> Result<(), Error> {
        if tokio::time::timeout(FUTURE_REVISION_WAIT, self.cache.wait_for(at))
            .await
            .is_err()
        {
            return Err(too_large(at, self.cache.revision()));
        }
        Ok(())
    }

    fn list_now(&self, filter: &Filter, limit: usize) -> Result<Listed, Error> {
        // Read before the objects: all kinds are at least here, and this one at its own last change.
        let revision = self.cache.revision();
        let mut page = Page::new(filter, limit);
        let newest = self
            .cache
            .of(&filter.kind)?
            .scan(&filter.namespace, "", |object| page.take(object));
        Ok(page.finish(revision.max(newest)))
    }

    /// The next page of a list. Where its revision is forgotten the refusal carries a token with which the rest can be had
    /// as it is now.
    async fn list_on(&self, filter: &Filter, token: &Continue, limit: usize) -> Result<Listed, Error> {
        let at = match u64::try_from(token.rv) {
            Ok(at) => at,
            Err(_) => {
                self.hear_all().await?;
                self.cache.revision()
            }
        };
        let page = self.list_at(filter, at, &token.after, limit).await;
        page.map_err(|error| {
            if !error.is_expired() {
                return error;
            }
            let mut error = Error::expired(INCONSISTENT);
            let rest = Continue {
                rv: LATEST,
                after: token.after.clone(),
            };
            error.status_mut().metadata.continue_ = Some(rest.render());
            error
        })
    }

    /// A list as the store was at `at`; what the cache still has at that revision is shared with it.
    async fn list_at(&self, filter: &Filter, at: u64, after: &str, limit: usize) -> Result<Listed, Error> {
        let cache = self.cache.of(&filter.kind)?;
        let prefix = keys::prefix(&cache.kind);
        let mut range = KeyRange::prefix(if filter.namespace.is_empty() {
            prefix.clone()
        } else {
            format!("{prefix}{}/", filter.namespace)
        });
        if !after.is_empty() {
            range.start = format!("{prefix}{after}\0").into();
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
                    None => match self.cache.opened(&cache.kind, kv).and_then(|value| {
                        let decoded = cache.kind.ops.decode(&value);
                        let typed = decoded.map_err(|e| Error::internal(e.message))?.object;
                        Ok(Object::from_stored(&cache.kind, typed, &value, kv.mod_revision))
                    }) {
                        Ok(object) => Arc::new(object),
                        Err(e) => {
                            tracing::error!(key = %kv.key.escape_ascii(), "passed over an object that cannot be read: {e}");
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

    /// Whether to go on.
    fn take(&mut self, object: &Arc<Object>) -> bool {
        if !self.filter.matches(object) {
            return true;
        }
        if self.limit > 0 && self.items.len() == self.limit {
            self.remaining += 1;
            // With selectors the rest is not counted, as Kubernetes does not.
            return !self.filter.selects();
        }
        self.items.push(object.clone());
        true
    }

    fn finish(self, revision: u64) -> Listed {
        let continue_token = match self.items.last() {
            Some(last) if self.remaining > 0 => Continue {
                rv: i64::try_from(revision).unwrap_or(LATEST),
                after: keys::local(last.namespace(), last.name()),
            }
            .render(),
            _ => String::new(),
        };
        Listed {
            revision,
            items: self.items,
            continue_token,
            remaining: (self.remaining > 0 && !self.filter.selects()).then_some(self.remaining),
        }
    }
}

impl Continue {
    pub fn parse(token: &str) -> Result<Self, Error> {
        let invalid = |why: String| {
            Error::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = BASE64.decode(token).map_err(|e| invalid(e.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|e| invalid(not_json(&bytes, &e)))
    }

    pub fn render(&self) -> String {
        BASE64.encode(serde_json::json!({"rv": self.rv, "after": self.after}).to_string())
    }
}

/// Go's words for bytes that do not begin like JSON.
fn not_json(bytes: &[u8], error: &serde_json::Error) -> String {
    match String::from_utf8_lossy(bytes).chars().next() {
        Some(_) if bytes[0] >= 0x80 => {
            format!(
                "invalid character '\\u{:04x}' looking for beginning of value",
                bytes[0]
            )
        }
        Some(c) if !"{[\"-0123456789tfn \n\r\t".contains(c) => {
            format!("invalid character '{c}' looking for beginning of value")
        }
        _ => error.to_string(),
    }
}

fn too_large(requested: u64, newest: u64) -> Error {
    let mut error = Error::timeout(format!(
        "Too large resource version: {requested}, current: {newest}"
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

/// `None` for an unset one.
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

pub(crate) fn invalid_options(kind: &str, mistakes: &Errors) -> Error {
    let about = About {
        group: "meta.k8s.io",
        resource: kind,
        name: "",
    };
    Error::invalid(about, mistakes)
}

const MATCHES: [&str; 3] = ["Exact", "NotOlderThan", ""];

fn validate_match(q: &ListQuery) -> Result<(), Error> {
    let path = field::Path::new("resourceVersionMatch");
    let mut mistakes = Errors::new();
    let m = q.resource_version_match.as_str();
    if m.is_empty() {
        return Ok(());
    }
    if q.resource_version.is_empty() {
        mistakes.forbidden(
            &path,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        );
    }
    if !q.continue_token.is_empty() {
        mistakes.forbidden(
            &path,
            "resourceVersionMatch is forbidden when continue is provided",
        );
    }
    if !MATCHES.contains(&m) {
        mistakes.push(unsupported_match(m));
    }
    if m == "Exact" && q.resource_version == "0" {
        mistakes.forbidden(
            &path,
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        );
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(invalid_options("ListOptions", &mistakes))
    }
}

/// The supported values in the order Kubernetes gives them, which is not sorted.
fn unsupported_match(found: &str) -> field::FieldError {
    field::FieldError {
        cause: field::Cause::NotSupported,
        field: "resourceVersionMatch".into(),
        value: Some(format!("{found:?}")),
        detail: "supported values: \"Exact\", \"NotOlderThan\", \"\"".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_comes_back_as_it_went() {
        let token = Continue {
            rv: 7,
            after: "a/b".into(),
        }
        .render();
        let back = Continue::parse(&token).unwrap();
        assert_eq!((back.rv, back.after.as_str()), (7, "a/b"));
    }

    #[test]
    fn garbage_is_no_continue_token() {
        let error = Continue::parse("garbage").err().unwrap();
        assert_eq!(
            error.message(),
            "invalid continue token: continue key is not valid: invalid character '\\u0081' looking for beginning of value"
        );
    }
}
