//! How long processes waited for processor, memory or disk (the kernel's pressure stall information), in files like
//! `cpu.pressure`.

use knarr_kubelet::stats::{PsiData, PsiStats};

/// None of a text without values. Where `full` is not defined (for a host's processors), older kernels leave the line
/// out: it stays 0.
pub(super) fn parse(text: &str) -> Option<PsiStats> {
    let mut stats = PsiStats::default();
    let mut any = false;
    for line in text.lines() {
        let (who, rest) = line.split_once(' ')?;
        let of = match who {
            "some" => &mut stats.some,
            "full" => &mut stats.full,
            _ => continue,
        };
        *of = data(rest)?;
        any = true;
    }
    any.then_some(stats)
}

fn data(fields: &str) -> Option<PsiData> {
    let mut data = PsiData::default();
    for field in fields.split_whitespace() {
        let (name, value) = field.split_once('=')?;
        match name {
            "avg10" => data.avg10 = value.parse().ok()?,
            "avg60" => data.avg60 = value.parse().ok()?,
            "avg300" => data.avg300 = value.parse().ok()?,
            "total" => data.total = value.parse().ok()?,
            _ => {}
        }
    }
    Some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_pressure_is_read_line_by_line() {
        let text = "some avg10=7.70 avg60=1.60 avg300=1.56 total=4249248070\n\
            full avg10=0.50 avg60=0.00 avg300=0.00 total=12\n";
        let want = PsiStats {
            some: PsiData {
                total: 4_249_248_070,
                avg10: 7.7,
                avg60: 1.6,
                avg300: 1.56,
            },
            full: PsiData {
                total: 12,
                avg10: 0.5,
                ..PsiData::default()
            },
        };
        assert_eq!(parse(text), Some(want));
        let some = text.lines().next().unwrap();
        assert_eq!(
            parse(some).map(|p| (p.some, p.full)),
            Some((want.some, PsiData::default()))
        );
        for nothing in ["", "some", "some avg10=x", "other a=1"] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }
}
