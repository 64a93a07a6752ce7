//! What form of an answer a client takes: JSON or YAML, and as itself, as a Table or as metadata only.

use knarr_api::Error;
use knarr_api::table::Include;

use crate::pipeline::with_empty_details;

/// How the bytes look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Media {
    #[default]
    Json,
    Yaml,
}

impl Media {
    pub fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
        }
    }
}

/// What is shown of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    #[default]
    Full,
    Table(Include),
    Metadata,
    MetadataList,
}

/// A client's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    pub media: Media,
    pub shape: Shape,
    pub pretty: bool,
    /// `v=v1beta1` beside a Table or metadata.
    pub beta: bool,
    /// `as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2`.
    pub aggregated: bool,
}

struct Clause<'a> {
    media: &'a str,
    params: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl<'a> Clause<'a> {
    fn param(&self, name: &str) -> &'a str {
        self.params
            .iter()
            .find(|(k, _)| *k == name)
            .map_or("", |(_, v)| *v)
    }
}

/// What a client names, most wanted first; of equals, what is named exactly before what has a `*`.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept
        .split(',')
        .map(str::trim)
        .filter(|c| !c.is_empty())
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or("");
            let params: Vec<_> = parts.map(|p| p.split_once('=').unwrap_or((p, ""))).collect();
            let quality = params
                .iter()
                .find(|(k, _)| *k == "q")
                .and_then(|(_, v)| v.parse().ok())
                .unwrap_or(1.0);
            Clause {
                media,
                params,
                quality,
            }
        })
        .collect();
    let stars = |c: &Clause<'_>| c.media.matches('*').count();
    clauses.sort_by(|a, b| {
        let better = b.quality.total_cmp(&a.quality);
        better.then_with(|| stars(a).cmp(&stars(b)))
    });
    clauses
}

/// What there is to be chosen from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Whether it is a discovery document.
    pub discovery: bool,
    /// Whether it has columns: what is only ever posted has none.
    pub tables: bool,
    /// Whether it can be watched (it shows in one error's words).
    pub streams: bool,
}

/// Reads `Accept`.
pub fn negotiate(accept: &str, include: &str, offered: Offered) -> Result<Form, Error> {
    let Offered {
        discovery,
        tables,
        streams,
    } = offered;
    let clauses = clauses(accept);
    if clauses.is_empty() {
        return Ok(Form::default());
    }
    // The router of kube-apiserver knows these alone; `application/*` counts only beside one of them.
    let known = |c: &Clause<'_>| {
        matches!(
            c.media,
            "*/*" | "application/json" | "application/yaml" | "application/vnd.kubernetes.protobuf"
        )
    };
    if !clauses.iter().any(known) {
        let watched = if streams {
            ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        } else {
            ""
        };
        return Err(with_empty_details(Error::new(
            406,
            "NotAcceptable",
            format!(
                "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
application/vnd.kubernetes.protobuf{watched}"
            ),
        )));
    }
    for clause in &clauses {
        let media = match clause.media {
            "*/*" | "application/*" | "application/json" => Media::Json,
            "application/yaml" => Media::Yaml,
            _ => continue,
        };
        let mut form = Form {
            media,
            pretty: matches!(clause.param("pretty"), "1" | "true"),
            beta: clause.param("v") == "v1beta1",
            ..Form::default()
        };
        let (group, version) = (clause.param("g"), clause.param("v"));
        let meta = group == "meta.k8s.io" && matches!(version, "v1" | "v1beta1");
        match clause.param("as") {
            "" => return Ok(form),
            "Table" if meta && tables => {
                form.shape = Shape::Table(include_of(include)?);
                return Ok(form);
            }
            "PartialObjectMetadata" if meta && !discovery => {
                form.shape = Shape::Metadata;
                return Ok(form);
            }
            "PartialObjectMetadataList" if meta && !discovery => {
                form.shape = Shape::MetadataList;
                return Ok(form);
            }
            "APIGroupDiscoveryList" if discovery && group == "apidiscovery.k8s.io" && version == "v2" => {
                form.aggregated = true;
                return Ok(form);
            }
            _ => {}
        }
    }
    Err(Error::new(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml, \
application/vnd.kubernetes.protobuf",
    ))
}

/// How OpenAPI documents are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApiMedia {
    Json,
    Protobuf,
}

/// The form in which a client takes `/openapi/v2`; `None` if it takes none that there is.
pub fn openapi_v2(accept: &str) -> Option<OpenApiMedia> {
    let form = |clause: &Clause<'_>| match clause.media {
        "*/*" | "application/*" | "application/json" => Some(OpenApiMedia::Json),
        // The first is no valid media type, and what client-go asks for all the same.
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        | "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" => Some(OpenApiMedia::Protobuf),
        _ => None,
    };
    match clauses(accept).as_slice() {
        [] => Some(OpenApiMedia::Json),
        clauses => clauses.iter().find_map(form),
    }
}

fn include_of(text: &str) -> Result<Include, Error> {
    match text {
        "" | "Metadata" => Ok(Include::Metadata),
        "Object" => Ok(Include::Object),
        "None" => Ok(Include::None),
        other => Err(Error::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
'Object', 'None', or empty"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_first_form_that_is_served() {
        const OFFERED: Offered = Offered {
            discovery: false,
            tables: true,
            streams: true,
        };
        let table = |accept: &str| {
            negotiate(accept, "", OFFERED)
                .map(|f| (f.media, f.shape))
                .map_err(|e| e.code())
        };
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(table(kubectl), Ok((Media::Json, Shape::Table(Include::Metadata))));
        assert_eq!(
            table("application/vnd.kubernetes.protobuf,application/json"),
            Ok((Media::Json, Shape::Full))
        );
        assert_eq!(
            table("application/json;q=0.1,application/yaml"),
            Ok((Media::Yaml, Shape::Full))
        );
        assert_eq!(table("application/vnd.kubernetes.protobuf"), Err(406));
        assert_eq!(table("application/xml"), Err(406));
        assert_eq!(table("application/*"), Err(406));
        assert_eq!(table("application/json;as=Table;v=v2;g=meta.k8s.io"), Err(406));
        assert_eq!(table(""), Ok((Media::Json, Shape::Full)));
        let posted = |accept: &str| {
            let offered = Offered {
                tables: false,
                ..OFFERED
            };
            negotiate(accept, "", offered)
                .map(|f| f.shape)
                .map_err(|e| e.code())
        };
        assert_eq!(posted("application/json;as=Table;v=v1;g=meta.k8s.io"), Err(406));
        assert_eq!(posted(kubectl), Ok(Shape::Full));
    }

    #[test]
    fn clients_get_the_openapi_document_in_the_form_they_want_most() {
        let (json, protobuf) = (Some(OpenApiMedia::Json), Some(OpenApiMedia::Protobuf));
        for (accept, form) in [
            ("", json),
            ("*/*", json),
            ("application/json, */*", json),
            (
                "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
                protobuf,
            ),
            (
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                protobuf,
            ),
            (
                "application/json;q=0.5,application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                protobuf,
            ),
            (
                "*/*,application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                protobuf,
            ),
            ("application/com.github.proto-openapi.spec.v3.v1.0+protobuf", None),
            ("text/html", None),
        ] {
            assert_eq!(openapi_v2(accept), form, "{accept}");
        }
    }
}
