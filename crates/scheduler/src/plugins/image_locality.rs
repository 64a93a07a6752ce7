//! ImageLocality: a node scores higher the more of the pod's large images it has, scaled by how many nodes have them
//! (or all pods would go to the node that pulled an image first).

use super::MAX_NODE_SCORE;
use crate::cluster::{Cluster, Image, NodeIndex};
use crate::pod_info::PodClass;

pub const NAME: &str = "ImageLocality";

const MIB: i64 = 1024 * 1024;
/// Below this sum of image sizes the score is 0.
const MIN_BYTES: i64 = 23 * MIB;
/// Above this size per container the score is the maximum.
const MAX_CONTAINER_BYTES: i64 = 1000 * MIB;

pub fn score(cluster: &Cluster, pod: &PodClass, index: NodeIndex) -> i64 {
    let nodes = cluster.len();
    let scaled = |image: &Image| (image.size_bytes as f64 * (image.nodes() as f64 / nodes as f64)) as i64;
    let images = pod.images.iter().chain(&pod.image_volumes);
    let there = images.filter_map(|name| cluster.image_on(name, index));
    let sum: i64 = there.map(scaled).sum();
    let max = MAX_CONTAINER_BYTES.saturating_mul(i64::try_from(pod.containers()).unwrap_or(1).max(1));
    MAX_NODE_SCORE * (sum.clamp(MIN_BYTES, max) - MIN_BYTES) / (max - MIN_BYTES)
}
