//! Negotiates the response's media type: JSON or YAML, and the object itself, a Table or PartialObjectMetadata.

use knarr_apimachinery::Error;
use knarr_strategy::table_response::Include;

use crate::request::with_empty_details;

/// The serialization of a response.
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

/// The negotiated form of a response (upstream `negotiation.MediaTypeOptions`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaTypeOptions {
    pub media: Media,
    pub shape: Shape,
    pub pretty: bool,
    /// `v=v1beta1` with a Table or PartialObjectMetadata.
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

/// The clauses of `Accept`, the preferred first; of equal quality an exact media type comes before one with a `*`.
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

/// The forms that a response can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Whether it is a discovery document.
    pub discovery: bool,
    /// Whether it has Table columns: resources that can only be created have none.
    pub tables: bool,
    /// Whether it can be watched (one error message differs).
    pub streams: bool,
}

/// Parses `Accept`.
pub fn negotiate(accept: &str, include: &str, offered: Offered) -> Result<MediaTypeOptions, Error> {
    let Offered {
        discovery,
        tables,
        streams,
    } = offered;
    let clauses = clauses(accept);
    if clauses.is_empty() {
        return Ok(MediaTypeOptions::default());
    }
    // kube-apiserver's router accepts only these; `application/*` counts only together with one of them.
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
        let mut media_type = MediaTypeOptions {
            media,
            pretty: matches!(clause.param("pretty"), "1" | "true"),
            beta: clause.param("v") == "v1beta1",
            ..MediaTypeOptions::default()
        };
        let (group, version) = (clause.param("g"), clause.param("v"));
        let meta = group == "meta.k8s.io" && matches!(version, "v1" | "v1beta1");
        match clause.param("as") {
            "" => return Ok(media_type),
            "Table" if meta && tables => {
                media_type.shape = Shape::Table(include_of(include)?);
                return Ok(media_type);
            }
            "PartialObjectMetadata" if meta && !discovery => {
                media_type.shape = Shape::Metadata;
                return Ok(media_type);
            }
            "PartialObjectMetadataList" if meta && !discovery => {
                media_type.shape = Shape::MetadataList;
                return Ok(media_type);
            }
            "APIGroupDiscoveryList" if discovery && group == "apidiscovery.k8s.io" && version == "v2" => {
                media_type.aggregated = true;
                return Ok(media_type);
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

/// The media type of OpenAPI documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApiMedia {
    Json,
    Protobuf,
}

/// The media type of `/openapi/v2` that a client accepts; `None` if it accepts none of those served.
pub fn openapi_v2(accept: &str) -> Option<OpenApiMedia> {
    let media_type = |clause: &Clause<'_>| match clause.media {
        "*/*" | "application/*" | "application/json" => Some(OpenApiMedia::Json),
        // The first is not a valid media type, but it is the one that client-go sends.
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        | "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" => Some(OpenApiMedia::Protobuf),
        _ => None,
    };
    match clauses(accept).as_slice() {
        [] => Some(OpenApiMedia::Json),
        clauses => clauses.iter().find_map(media_type),
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
        for (accept, media_type) in [
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
            assert_eq!(openapi_v2(accept), media_type, "{accept}");
        }
    }
}
