//! The options of a connect request (`PodExecOptions` and the like), as admission gets them.

use knarr_api::kind::Subresource;
use knarr_apimachinery::Error;
use serde_json::{Value, json};

use crate::http::Http;
use crate::request::Target;

/// The streams that exec and attach may request.
const STREAMS: [&str; 4] = ["stdin", "stdout", "stderr", "tty"];

/// The options object of the subresource's kind.
pub(super) fn options(http: &Http, target: &Target<'_>, served: &Subresource) -> Result<Value, Error> {
    let query = &http.query;
    let mut options = json!({"kind": served.kind(target.kind), "apiVersion": target.kind.api_version()});
    match served.name {
        "exec" | "attach" => {
            for stream in STREAMS.into_iter().filter(|s| query.flag(s)) {
                options[stream] = true.into();
            }
            if !query.get("container").is_empty() {
                options["container"] = query.get("container").into();
            }
            if served.name == "exec" {
                // Go writes an empty list as null.
                let command: Vec<&str> = query.all("command").collect();
                options["command"] = if command.is_empty() {
                    Value::Null
                } else {
                    command.into()
                };
            }
        }
        "portforward" => {
            let ports = query.all("ports").flat_map(|p| p.split(',')).map(|port| {
                port.parse::<i32>().map_err(|_| {
                    Error::bad_request(format!("strconv.ParseUint: parsing {port:?}: invalid syntax"))
                })
            });
            let ports = ports.collect::<Result<Vec<i32>, Error>>()?;
            if !ports.is_empty() {
                options["ports"] = ports.into();
            }
        }
        _ => {
            let path = decoded(&path(http));
            if !path.is_empty() {
                options["path"] = path.into();
            }
        }
    }
    Ok(options)
}

/// The path behind the proxy, as it was sent: empty, or beginning with a slash.
pub(super) fn path(http: &Http) -> String {
    match http.info.rest.as_str() {
        "" if http.info.path.ends_with('/') => "/".into(),
        "" => String::new(),
        rest => format!("/{rest}"),
    }
}

pub(super) fn decoded(path: &str) -> String {
    percent_encoding::percent_decode_str(path)
        .decode_utf8_lossy()
        .into_owned()
}
