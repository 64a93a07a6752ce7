//! Which plugins are called at which extension point: the defaults of v1.36, merged with what a profile enables,
//! disables and weights, in the order and with the precedence of kube-scheduler.

use std::collections::{BTreeMap, BTreeSet};

use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::Path;
use serde_json::Value;

use super::version::Version;

/// An extension point of the scheduling framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExtensionPoint {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

use ExtensionPoint::{
    Bind, Filter, Permit, PostBind, PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve,
    Score,
};

impl ExtensionPoint {
    const ALL: [ExtensionPoint; 12] = [
        PreEnqueue, QueueSort, PreFilter, Filter, PostFilter, PreScore, Score, Reserve, Permit, PreBind,
        Bind, PostBind,
    ];

    /// Its field in `plugins`.
    pub fn field(self) -> &'static str {
        match self {
            PreEnqueue => "preEnqueue",
            QueueSort => "queueSort",
            PreFilter => "preFilter",
            Filter => "filter",
            PostFilter => "postFilter",
            PreScore => "preScore",
            Score => "score",
            Reserve => "reserve",
            Permit => "permit",
            PreBind => "preBind",
            Bind => "bind",
            PostBind => "postBind",
        }
    }
}

/// A plugin of v1.36.
struct PluginInfo {
    name: &'static str,
    points: &'static [ExtensionPoint],
    /// In the default set: with this weight (0: it does not score).
    default_weight: Option<i32>,
    /// Whether this scheduler implements it. Others are accepted, because the default set names them.
    implemented: bool,
}

const fn known(
    name: &'static str,
    default_weight: Option<i32>,
    implemented: bool,
    points: &'static [ExtensionPoint],
) -> PluginInfo {
    PluginInfo {
        name,
        points,
        default_weight,
        implemented,
    }
}

/// All in-tree plugins; those of the default set in its order.
const PLUGINS: [PluginInfo; 23] = [
    known("SchedulingGates", Some(0), true, &[PreEnqueue]),
    known("PrioritySort", Some(0), true, &[QueueSort]),
    known("NodeUnschedulable", Some(0), true, &[Filter]),
    known("NodeName", Some(0), true, &[Filter]),
    known("TaintToleration", Some(3), true, &[Filter, PreScore, Score]),
    known(
        "NodeAffinity",
        Some(2),
        true,
        &[PreFilter, Filter, PreScore, Score],
    ),
    known("NodePorts", Some(0), true, &[PreFilter, Filter]),
    known(
        "NodeResourcesFit",
        Some(1),
        true,
        &[PreFilter, Filter, PreScore, Score],
    ),
    known("VolumeRestrictions", Some(0), true, &[PreFilter, Filter]),
    known("NodeVolumeLimits", Some(0), true, &[PreFilter, Filter]),
    known(
        "VolumeBinding",
        Some(0),
        true,
        &[PreFilter, Filter, PreScore, Score, Reserve, PreBind],
    ),
    known("VolumeZone", Some(0), true, &[PreFilter, Filter]),
    known(
        "PodTopologySpread",
        Some(2),
        true,
        &[PreFilter, Filter, PreScore, Score],
    ),
    known(
        "InterPodAffinity",
        Some(2),
        true,
        &[PreFilter, Filter, PreScore, Score],
    ),
    known(
        "DynamicResources",
        Some(2),
        true,
        &[PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind],
    ),
    known("DefaultPreemption", Some(0), true, &[PreEnqueue, PostFilter]),
    known(
        "NodeResourcesBalancedAllocation",
        Some(1),
        true,
        &[PreScore, Score],
    ),
    known("ImageLocality", Some(1), true, &[Score]),
    known("DefaultBinder", Some(0), true, &[Bind]),
    known("NodeDeclaredFeatures", Some(0), false, &[PreFilter, Filter]),
    known("GangScheduling", None, false, &[PreEnqueue, Permit]),
    known("TopologyPlacementGenerator", None, false, &[]),
    known("PodGroupPodsCount", None, false, &[]),
];

/// Plugins of the default set of versions before v1: another plugin replaces them, or they were removed.
const REMOVED_IN_V1: [&str; 5] = [
    "AzureDiskLimits",
    "CinderLimits",
    "EBSLimits",
    "GCEPDLimits",
    "SelectorSpread",
];
/// The first version that rejects them, as kube-scheduler's message names it.
const V1: &str = "kubescheduler.config.k8s.io/v1";

fn find(name: &str) -> Option<&'static PluginInfo> {
    PLUGINS.iter().find(|p| p.name == name)
}

/// Whether there is such a plugin, here or in kube-scheduler.
pub(super) fn is_known(name: &str) -> bool {
    find(name).is_some()
}

/// A plugin at an extension point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plugin {
    pub name: &'static str,
    /// The weight of its score; unused where it does not score.
    pub weight: i32,
}

/// The enabled plugins, at each extension point in the order in which they are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugins(BTreeMap<ExtensionPoint, Vec<Plugin>>);

impl Default for Plugins {
    fn default() -> Self {
        expand(&default_set(), &BTreeMap::new())
    }
}

impl Plugins {
    pub fn at(&self, point: ExtensionPoint) -> &[Plugin] {
        self.0.get(&point).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn is_enabled(&self, point: ExtensionPoint, name: &str) -> bool {
        self.at(point).iter().any(|p| p.name == name)
    }

    /// The weight of its score; 0: it does not score.
    pub fn weight(&self, name: &str) -> i32 {
        self.at(Score)
            .iter()
            .find(|p| p.name == name)
            .map_or(0, |p| p.weight)
    }

    pub(super) fn disable(&mut self, point: ExtensionPoint, name: &str) {
        if let Some(plugins) = self.0.get_mut(&point) {
            plugins.retain(|p| p.name != name);
        }
    }
}

fn default_set() -> Vec<Plugin> {
    let default = |p: &PluginInfo| {
        Some(Plugin {
            name: p.name,
            weight: p.default_weight?,
        })
    };
    PLUGINS.iter().filter_map(default).collect()
}

/// What a profile says about one extension point.
#[derive(Debug, Default)]
struct PluginSet {
    enabled: Vec<Plugin>,
    disabled: BTreeSet<String>,
}

/// `*` means all default plugins.
const ALL: &str = "*";

/// Parses `plugins` of a profile.
pub(super) fn read(mut fields: Fields, version: Version, report: &mut Report) -> Plugins {
    let path = fields.path.clone();
    let mut sets = BTreeMap::new();
    for point in ExtensionPoint::ALL {
        if let Some(set) = fields.object(point.field(), report) {
            sets.insert(point, read_set(set, Some(point), version, report));
        }
    }
    let multi_point = fields
        .object("multiPoint", report)
        .map(|set| read_set(set, None, version, report))
        .unwrap_or_default();
    // For gang scheduling; the feature gate is off.
    for name in ["placementGenerate", "placementScore"] {
        if fields.take(name).is_some() {
            report.note(&fields.at(name), "has no effect: pods are scheduled one by one");
        }
    }
    if version == Version::V1Alpha1 {
        // The name of this point before preBind existed.
        for name in ["unreserve", "postReserve"] {
            if fields.take(name).is_some() {
                report.note(
                    &fields.at(name),
                    "has no effect: there are no plugins of that kind any more",
                );
            }
        }
    }
    fields.finish(report);

    let plugins = expand(&merge(default_set(), &multi_point), &sets);
    if plugins.at(QueueSort).is_empty() {
        report.errors.required(
            &path.child(QueueSort.field()),
            "pods must be sorted; enable PrioritySort",
        );
    }
    if plugins.at(Bind).is_empty() {
        report.errors.required(
            &path.child(Bind.field()),
            "at least one bind plugin is needed; enable DefaultBinder",
        );
    }
    plugins
}

fn read_set(
    mut fields: Fields,
    point: Option<ExtensionPoint>,
    version: Version,
    report: &mut Report,
) -> PluginSet {
    let mut set = PluginSet::default();
    for (item, path) in fields.list("enabled", report).unwrap_or_default() {
        let Some((name, weight)) = read_plugin(item, path.clone(), report) else {
            continue;
        };
        if let Some(plugin) = checked(name, weight, point, version, &path, report) {
            if set.enabled.iter().any(|p| p.name == plugin.name) {
                report.errors.duplicate(&path.child("name"), name);
            } else {
                set.enabled.push(plugin);
            }
        }
    }
    for (item, path) in fields.list("disabled", report).unwrap_or_default() {
        if let Some((name, _)) = read_plugin(item, path.clone(), report) {
            if name != ALL && !is_known(name) {
                report.note(&path.child("name"), "no such plugin to disable");
            }
            set.disabled.insert(name.to_string());
        }
    }
    fields.finish(report);
    set
}

/// Name and weight as given.
fn read_plugin<'a>(item: &'a Value, path: Path, report: &mut Report) -> Option<(&'a str, Option<i32>)> {
    let mut fields = Fields::new(item, path, report);
    let is_object = item.is_object();
    let name = fields.text("name", report);
    let weight = fields.integer("weight", report);
    if name.is_none_or(str::is_empty) && is_object && item.get("name").is_none_or(Value::is_string) {
        report.errors.required(&fields.at("name"), "");
    }
    fields.finish(report);
    Some((name.filter(|n| !n.is_empty())?, weight))
}

fn checked(
    name: &str,
    weight: Option<i32>,
    point: Option<ExtensionPoint>,
    version: Version,
    path: &Path,
    report: &mut Report,
) -> Option<Plugin> {
    let at = path.child("name");
    if REMOVED_IN_V1.contains(&name) {
        if version == Version::V1 {
            let detail =
                format!("was invalid in version {V1:?} (KubeSchedulerConfiguration is version {V1:?})");
            report.errors.invalid(&at, name, detail);
        } else {
            report.note(
                &at,
                "has no effect: another plugin of the default set does this now",
            );
        }
        return None;
    }
    let Some(known) = find(name) else {
        report
            .errors
            .not_found_because(&at, name, "there is no such plugin");
        return None;
    };
    if let Some(point) = point
        && !known.points.contains(&point)
    {
        let points: Vec<&str> = known.points.iter().map(|p| p.field()).collect();
        let detail = format!(
            "does not work at {}; it works at {}",
            point.field(),
            points.join(", ")
        );
        report.errors.invalid(&at, name, detail);
        return None;
    }
    if !known.implemented {
        report.note(&at, "has no effect: this scheduler does not implement the plugin");
    }
    let weight = weight.unwrap_or(0);
    if weight < 0 {
        report
            .errors
            .invalid(&path.child("weight"), weight, "must not be negative");
    }
    Some(Plugin {
        name: known.name,
        // None and 0 mean weight 1, also where the default weight is higher.
        weight: if weight == 0 { 1 } else { weight },
    })
}

/// Merges `multiPoint` into the default set: a default plugin that is configured again keeps its position.
fn merge(defaults: Vec<Plugin>, custom: &PluginSet) -> Vec<Plugin> {
    let mut merged = Vec::new();
    if !custom.disabled.contains(ALL) {
        for default in defaults {
            if custom.disabled.contains(default.name) {
                continue;
            }
            let configured = custom.enabled.iter().find(|p| p.name == default.name);
            merged.push(configured.copied().unwrap_or(default));
        }
    }
    for plugin in &custom.enabled {
        if !merged.iter().any(|p| p.name == plugin.name) {
            merged.push(*plugin);
        }
    }
    merged
}

/// Adds every plugin of `multi_point` at all extension points that it implements, unless the point's own set disables
/// it: first those that the set configures itself, then the others, then the further ones of the set.
fn expand(multi_point: &[Plugin], sets: &BTreeMap<ExtensionPoint, PluginSet>) -> Plugins {
    let none = PluginSet::default();
    let mut plugins = BTreeMap::new();
    for point in ExtensionPoint::ALL {
        let set = sets.get(&point).unwrap_or(&none);
        let works_here = |p: &&Plugin| find(p.name).is_some_and(|known| known.points.contains(&point));
        let spread: Vec<Plugin> = multi_point
            .iter()
            .filter(works_here)
            .filter(|p| !set.disabled.contains(ALL) && !set.disabled.contains(p.name))
            .copied()
            .collect();
        let among = |p: &Plugin, list: &[Plugin]| list.iter().any(|q| q.name == p.name);
        let (configured, further): (Vec<Plugin>, Vec<Plugin>) =
            set.enabled.iter().partition(|p| among(p, &spread));
        let others = spread.into_iter().filter(|p| !among(p, &set.enabled));
        let all: Vec<Plugin> = configured.iter().copied().chain(others).chain(further).collect();
        plugins.insert(point, all);
    }
    Plugins(plugins)
}
