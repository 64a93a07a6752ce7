//! ImageLocality: a node that has large images of the pod already is the better one, the more so the more nodes have
//! them (or all pods would crowd where an image is first).

use super::MAX_NODE_SCORE;
use crate::cluster::{Cluster, Image, Place};
use crate::pod_info::PodClass;

pub const NAME: &str = "ImageLocality";

const MIB: i64 = 1024 * 1024;
/// Images that are smaller in sum give nothing.
const MIN_BYTES: i64 = 23 * MIB;
/// For each container, what more gives nothing more.
const MAX_CONTAINER_BYTES: i64 = 1000 * MIB;

pub fn score(cluster: &Cluster, pod: &PodClass, place: Place) -> i64 {
    let nodes = cluster.len();
    let scaled = |image: &Image| (image.size_bytes as f64 * (image.nodes() as f64 / nodes as f64)) as i64;
    let images = pod.images.iter().chain(&pod.image_volumes);
    let there = images.filter_map(|name| cluster.image_on(name, place));
    let sum: i64 = there.map(scaled).sum();
    let max = MAX_CONTAINER_BYTES.saturating_mul(i64::try_from(pod.containers()).unwrap_or(1).max(1));
    MAX_NODE_SCORE * (sum.clamp(MIN_BYTES, max) - MIN_BYTES) / (max - MIN_BYTES)
}
