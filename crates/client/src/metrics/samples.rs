//! Metrics that are known only when they are read: sizes, states, and what others have counted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::k8s_openapi;
use prometheus::core::Metric as _;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::{encode, level};

/// Families of samples, in the order in which they were added. Labels keep their order, too.
#[derive(Debug, Default)]
pub struct Samples(Vec<MetricFamily>);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Samples {
    /// The samples that follow are of this counter.
    pub fn counter(&mut self, name: &str, help: &str) {
        self.family(name, MetricType::COUNTER, help);
    }

    /// The samples that follow are of this gauge.
    pub fn gauge(&mut self, name: &str, help: &str) {
        self.family(name, MetricType::GAUGE, help);
    }

    /// The samples that follow are of this metric, a counter or a gauge.
    pub fn family(&mut self, name: &str, of: MetricType, help: &str) {
        let mut family = MetricFamily::default();
        family.set_name(name.to_string());
        family.set_help(help.to_string());
        family.set_field_type(of);
        self.0.push(family);
    }

    /// A value of the last family.
    pub fn add(&mut self, labels: Labels, value: f64) {
        self.add_at(labels, value, None);
    }

    /// A value of the last family that was measured at a given time.
    pub fn add_at(&mut self, labels: Labels, value: f64, at: Option<&Time>) {
        let Some(family) = self.0.last_mut() else { return };
        let mut metric = Metric::from_label(pairs(labels));
        if family.get_field_type() == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        if let Some(at) = at {
            metric.set_timestamp_ms(at.0.as_millisecond());
        }
        family.mut_metric().push(metric);
    }

    /// A family of histograms, each with its labels.
    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'a>, &'a prometheus::Histogram)>,
    ) {
        self.family(name, MetricType::HISTOGRAM, help);
        let Some(family) = self.0.last_mut() else { return };
        for (labels, histogram) in series {
            let mut metric = histogram.metric();
            metric.set_label(pairs(labels));
            family.mut_metric().push(metric);
        }
    }

    /// All families with at least one sample, in the text format.
    pub fn text(mut self) -> String {
        level::annotate(&mut self.0);
        self.text_without_levels()
    }

    /// The same without stability levels, which the metrics of other programs do not have, such as cAdvisor's.
    pub fn text_without_levels(mut self) -> String {
        self.0.retain(|family| !family.get_metric().is_empty());
        encode(&self.0)
    }
}

fn pairs(labels: Labels) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_string());
        pair.set_value((*value).to_string());
        pair
    };
    labels.iter().map(pair).collect()
}
