//! `--tracing-config-file`: where traces are exported to, as kube-apiserver's flag of this name (a TracingConfiguration).

use serde::Deserialize;

use super::reader::Reader;

/// The default endpoint of an OpenTelemetry collector, as in Kubernetes.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
/// The versions of TracingConfiguration that Kubernetes reads.
const API_VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const PER_MILLION: i32 = 1_000_000;

/// Where traces are exported to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfiguration {
    /// Host and port of the collector, which speaks OTLP over gRPC without TLS.
    pub endpoint: String,
    /// Of a million traces that begin here so many are exported. Traces that a client began and exports are always exported.
    pub sampling_rate_per_million: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i32>,
}

impl TracingConfiguration {
    fn parse(text: &str) -> Result<Self, Vec<String>> {
        let file: File = serde_saphyr::from_str(text).map_err(|e| vec![e.to_string()])?;
        let mut errors = Vec::new();
        if file.kind != "TracingConfiguration" || !API_VERSIONS.contains(&file.api_version.as_str()) {
            errors.push(format!(
                "it is a {} of {}: expected a TracingConfiguration of {}",
                file.kind, file.api_version, API_VERSIONS[0]
            ));
        }
        let endpoint = file.endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let is_authority = endpoint
            .parse::<http::uri::Authority>()
            .is_ok_and(|authority| authority.port_u16().is_some());
        if !is_authority {
            errors.push(format!(
                "endpoint: {endpoint:?}: expected HOST:PORT of a collector, such as {DEFAULT_ENDPOINT}"
            ));
        }
        let rate = file.sampling_rate_per_million.unwrap_or(0);
        if !(0..=PER_MILLION).contains(&rate) {
            errors.push(format!(
                "samplingRatePerMillion: {rate}: expected a number from 0 to {PER_MILLION}"
            ));
        }
        match errors.is_empty() {
            true => Ok(TracingConfiguration {
                endpoint,
                sampling_rate_per_million: rate.unsigned_abs(),
            }),
            false => Err(errors),
        }
    }

    /// The fraction of traces that begin here and are exported.
    pub fn sampling_ratio(&self) -> f64 {
        f64::from(self.sampling_rate_per_million) / f64::from(PER_MILLION)
    }
}

impl Reader {
    /// `None` if no traces are exported.
    pub(super) fn tracing(&mut self, flag: &Option<String>) -> Option<TracingConfiguration> {
        let path = self.get("tracingConfigFile", "--tracing-config-file", flag, "", |s| {
            Ok((!s.is_empty()).then(|| s.into()))
        });
        self.parsed(path, TracingConfiguration::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_a_tracing_configuration_is_read_as_by_kube_apiserver() {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
        let read = TracingConfiguration::parse(head).unwrap();
        assert_eq!(
            (read.endpoint.as_str(), read.sampling_ratio()),
            ("localhost:4317", 0.0)
        );
        let text = format!("{head}endpoint: collector.example.com:4317\nsamplingRatePerMillion: 100000\n");
        let read = TracingConfiguration::parse(&text).unwrap();
        assert_eq!(
            (read.endpoint.as_str(), read.sampling_ratio()),
            ("collector.example.com:4317", 0.1)
        );
    }

    #[test]
    fn a5_all_errors_of_a_tracing_configuration_are_reported() {
        for (text, named) in [
            (
                "apiVersion: v1\nkind: TracingConfiguration\n",
                &["apiserver.config.k8s.io/v1"][..],
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: http://c:1/\nsamplingRatePerMillion: 1000001\n",
                &["endpoint", "samplingRatePerMillion"],
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nrate: 1\n",
                &["rate"],
            ),
        ] {
            let errors = TracingConfiguration::parse(text).unwrap_err();
            assert_eq!(errors.len(), named.len(), "{errors:?}");
            for (error, name) in errors.iter().zip(named) {
                assert!(error.contains(name), "{error}");
            }
        }
    }
}
