package columns_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/invariant"
)

// known are queries that this engine evaluates itself.
var known = []string{
	`c_total`, `g`, `g{ns="3"}`, `{__name__=~"c_total|g"}`, `nothing`, `c_total offset 7m`, `c_total offset -7m`, `g @ 1767240000`, `g @ end()`, `c_total @ start() offset 1h`,
	`late`,
	`rate(c_total[5m])`, `increase(c_total[90s])`, `delta(g[5m])`, `rate(g[5m])`, `rate(c_total[15s])`, `rate(c_total[1h])`, `rate(c_total[5m] offset 13m)`, `increase(c_total[10m] @ end())`, `rate({__name__=~"part_.*"}[5m])`,
	`irate(c_total[5m])`, `idelta(g[5m])`, `resets(c_total[20m])`, `changes(g[20m])`, `deriv(g[10m])`, `predict_linear(g[10m], 3600)`, `predict_linear(g[10m] @ start(), 3600)`,
	`sum_over_time(g[5m])`, `avg_over_time(g[5m])`, `min_over_time(g[5m])`, `max_over_time(g[5m])`, `count_over_time(g[5m])`, `last_over_time(g[5m])`, `first_over_time(g[5m])`, `present_over_time(g[5m])`,
	`stddev_over_time(g[5m])`, `stdvar_over_time(g[5m])`, `quantile_over_time(0.9, g[5m])`, `quantile_over_time(2, g[5m])`, `quantile_over_time(time() / 2e9, g[5m])`, `mad_over_time(g[5m])`, `ts_of_max_over_time(g[5m])`, `double_exponential_smoothing(g[5m], 0.3, 0.4)`, `double_exponential_smoothing(g[5m], 3, 0.4)`,
	`sum(c_total)`, `sum by (ns) (c_total)`, `sum without (i) (c_total)`, `sum by (ns) (rate(c_total[5m]))`, `sum without (i, ns) (rate(c_total[5m]))`, `avg by (ns) (g)`, `avg(g)`, `min by (ns) (g)`, `max by (ns) (g)`, `count by (ns) (g)`, `count(c_total)`, `group by (i) (g)`, `stddev by (ns) (c_total)`, `stdvar(g)`,
	`sum by (ns) (avg_over_time(g[5m]))`, `sum(sum by (ns) (c_total))`, `avg(max by (i) (g))`, `sum by (nothing) (c_total)`, `sum(c_total @ start())`,
	`c_total * 2`, `2 - c_total`, `c_total / 0`, `g ^ 2`, `g % 7`, `g atan2 2`, `2 ^ g`, `g > 0`, `0 < g`, `g >= bool 10`, `10 >= bool g`, `g == 0`, `g != 1`, `c_total > 1e5`, `time() < g`, `g * time()`,
	`-g`, `-(-c_total)`, `+g`, `(g)`, `1 + 2`, `time() - 5`, `time() > bool 1767240000`, `3`, `-(1)`, `time()`, `g + (2 * 3)`, `(g @ start()) + 1`, `sum(g @ end()) * 2`,
	`{__name__=~"part_.*"} * 2`, `-{__name__=~"part_.*"}`, `count({__name__=~"part_.*"} * 2)`,
	`{__name__=~"both_.*"} * 2`, `-{__name__=~"both_.*"}`, `rate({__name__=~"both_.*"}[5m])`, `last_over_time({__name__=~"both_.*"}[5m])`,
	`topk(3, c_total)`, `topk(3, rate(c_total[5m]))`, `bottomk by (ns) (1, g)`, `topk by (ns) (2, g)`, `topk(100, g)`, `topk(0, g)`, `topk(-1, g)`, `topk(time() - 1767240000, g)`, `bottomk(2, g)`, `limitk(3, g)`, `limitk by (ns) (1, c_total)`, `limit_ratio(0.5, g)`, `limit_ratio(-0.3, g)`, `limit_ratio(7, g)`, `limit_ratio(0, g)`,
	`topk(0/0, g)`, `topk(1e300, g)`, `topk(-1e300, g)`, `limit_ratio(0/0, g)`, `sum(topk(3, c_total))`, `sum(topk by (ns) (2, rate(c_total[5m])))`,
	`quantile(0.9, g)`, `quantile by (ns) (0.9, rate(c_total[5m]))`, `quantile(1.5, g)`, `quantile(-1, g)`, `quantile(0/0, g)`, `quantile by (ns) (time() / 3e9, g)`, `sort_by_label(count_values("v", g > 0), "v")`, `sort_by_label(count_values by (ns) ("v", count by (ns) (g)), "ns")`, `sort_by_label(count_values without (i) ("v", c_total * 0), "ns")`, `count_values("", g)`,
	`c_total + c_total`, `c_total / on (i, ns) g`, `c_total - ignoring (i) g`, `g * on (ns) group_left () sum by (ns) (c_total)`, `sum by (ns) (c_total) / on (ns) group_right () g`, `g > on (ns, i) c_total`, `g > bool on (ns, i) c_total`, `g * on (ns) c_total`, `g * on (ns) group_left (i) c_total`, `g == g`, `g - g offset 5m`, `rate(c_total[5m]) / on (ns) group_left sum by (ns) (rate(c_total[5m]))`, `{__name__=~"part_.*"} + {__name__=~"part_.*"}`, `c_total + on (i, ns) group_left (x) part_a`, `g + on (ns, i) fill (3) (c_total > 1e5)`, `g + on (ns, i) fill_left (3) (c_total > 1e5)`, `(g > 0) + on (ns, i) fill_right (7) c_total`, `g * on (ns) group_left () fill (0) sum by (ns) (c_total > 1e5)`, `sum by (ns) (c_total > 1e5) * on (ns) group_right () fill_right (0) g`, `sum by (ns) (c_total > 1e5) * on (ns) group_right () fill_left (0) g`,
	`g and c_total`, `g and on (ns, i) c_total`, `g or c_total`, `c_total or on (ns) g`, `g unless on (i) c_total > 1e5`, `g unless nothing`, `g and nothing`, `nothing or g`, `(g > 0) or (g < 0)`, `{__name__=~"part_.*"} or {__name__=~"both_.*"}`,
	`abs(g)`, `ceil(g)`, `floor(g)`, `exp(g)`, `sqrt(g)`, `ln(g)`, `log2(g)`, `log10(g)`, `sin(g)`, `acosh(g)`, `atan(g)`, `rad(g)`, `deg(g)`, `sgn(g)`, `round(g)`, `round(g, 0.1)`, `round(g, time())`, `clamp(g, -5, 5)`, `clamp(g, 5, -5)`, `clamp_min(g, 0)`, `clamp_max(g, time())`, `abs({__name__=~"part_.*"})`, `abs({__name__=~"both_.*"})`,
	`label_replace(g, "a", "$1-x", "ns", "(.*)")`, `label_replace(g, "i", "", "ns", ".*")`, `label_replace(g, "__name__", "q", "ns", "(.*)")`, `label_join(g, "a", "-", "ns", "i")`, `label_replace(g, "a", "b", "c", "(")`, `sum(label_replace(c_total, "a", "$1", "ns", "(.*)"))`, `label_replace({__name__=~"part_.*"}, "__name__", "z", "", "")`,
	`scalar(g)`, `scalar(part_a)`, `vector(3)`, `vector(time())`, `g * scalar(part_a)`, `pi()`, `g + pi()`, `absent(g)`, `absent(nothing{a="b"})`, `absent(part_a)`, `absent(sum(part_a))`, `absent_over_time(g[5m])`, `absent_over_time(part_a[5m])`, `absent_over_time(nothing{x="y"}[5m])`,
	`sort(g)`, `sort_desc(g)`, `sort_by_label(g, "ns", "i")`, `sort_by_label_desc(g, "i")`, `hour()`, `day_of_week(g)`, `month(c_total)`, `days_in_month(vector(time()))`, `timestamp(g)`, `timestamp(g offset 1m)`, `timestamp(g * 1)`, `timestamp({__name__=~"both_.*"})`, `timestamp({__name__=~"part_.*"})`,
	`histogram_quantile(0.9, rate(b_bucket[5m]))`, `histogram_quantile(0.9, sum by (le) (rate(b_bucket[5m])))`, `histogram_quantile(7, b_bucket)`, `histogram_quantile(0.5, g)`, `histogram_fraction(0, 5, b_bucket)`,
	`max_over_time(g[10m:1m])`, `rate(c_total[10m:30s])`, `sum(rate(c_total[10m:30s] offset 3m))`, `avg_over_time(rate(c_total[5m])[20m:])`, `max_over_time(sum by (ns) (g)[10m:45s])`, `quantile_over_time(time() / 3e9, g[10m:1m])`, `min_over_time(max_over_time(g[5m:1m])[10m:2m])`, `absent_over_time(nothing[5m:1m])`, `last_over_time(g[1m:5m])`, `max_over_time((g @ end())[5m:1m])`, `max_over_time({__name__=~"both_.*"}[5m:1m])`, `deriv(g[10m:1m])`, `rate(g[10m:1m])`, `max_over_time(g[10m:1m] @ end())`, `sum(max_over_time(g[10m:1m] @ end() offset 7m))`, `quantile_over_time(time() / 3e9, g[10m:1m] @ end())`, `max_over_time(rate(c_total[5m:30s] @ end())[10m:2m])`, `max_over_time(rate(c_total[5m:30s] @ end() offset 1m)[10m:2m] offset 3m)`, `min_over_time((g @ end())[10m:3m] offset 2m)`,
	`quantile(scalar(sum(g @ start() < bool 1e300)), g)`, `count_over_time(quantile by (ns) (scalar(part_a @ 1767229224), b_bucket)[10m:1m])`,
	`sum by (__name__, i, ns) ({__name__=~"c_total|g"})`, `sum without () (rate(c_total[5m]))`, `min by (i, ns) (-c_total)`, `max by (ns, i) (abs(g * 2))`, `count by (ns, i) (timestamp(g))`, `sum by (ns) (increase(g[5m]))`, `count(group by (i, ns) (max_over_time((g - 1)[5m:1m])))`, `sum by (__name__) ({__name__=~"both_.*"} > bool 3)`, `avg without (ns) (deriv(g[10m]))`,
	`sum(g) / sum(g)`, `sum by (ns) (c_total) / on () group_left () sum(sum by (ns) (c_total))`, `sum(rate(g[5m])) + sum(rate(g[5m]))`, `sum(g @ end()) + sum(g @ end()) - sum(g)`, `sum by (ns) (g) > sum by (ns) (g) * 0.5`, `-sum by (ns) (g) or sum by (ns) (g)`, `max_over_time((sum(g) + sum(g))[10m:1m]) - (sum(g) + sum(g))`, `sum(-{__name__=~"part_.*"}) + sum(-{__name__=~"part_.*"})`, `count(topk(3, c_total)) / count(topk(3, c_total))`, `sum(g) / sum(g) > bool sum(g offset 1m)`, `(avg(h) + avg(h)) * 2 - avg(h)`,
	`rate(c_total[5m]) / rate(c_total[5m])`, `rate(g[5m]) / rate(g[5m])`, `(c_total - c_total offset 1m) / c_total`, `g > (g)`, `g == bool on (ns, i) group_left () g`, `-(g / g) or (g * g)`, `(max_over_time(g[5m]) - min_over_time(g[5m])) / max_over_time(g[5m])`, `{__name__=~"both_.*"} * {__name__=~"both_.*"}`, `g * on (ns) g`, `(c_total @ end() - c_total @ end()) + c_total @ end()`, `max(max_over_time((g - g)[10m:1m]) + (g - g))`, `g + fill (1) g`,
	`max(abs(g)) / count(abs(g))`, `sum by (ns) (rate(c_total[5m])) / on () group_left () sum(rate(c_total[5m]))`, `avg(rate(g[5m])) - min(rate(g[5m])) + max(rate(g[5m]))`, `stddev(rate(g[5m])) / avg(rate(g[5m])) + stddev(rate(g[5m]))`, `max(abs(g @ end())) / count(abs(g @ end())) * max(abs(g))`, `sum(-{__name__=~"part_.*"}) / count(-{__name__=~"part_.*"})`, `max(g - g offset 1m) > count(g - g offset 1m) or min(g - g offset 1m)`, `sum(g) / count(g)`, `max(max_over_time((min(abs(g)) / count(abs(g)))[10m:1m]))`,
	`rate(c_total[5m] anchored)`, `rate(c_total[5m] smoothed)`, `increase(c_total[90s] anchored offset 3m)`, `delta(g[7m] smoothed @ end())`, `changes(g[10m] anchored)`, `resets(c_total[20m] anchored offset -7m)`, `increase({__name__=~"part_.*"}[5m] smoothed @ start() offset 1m)`, `count(g) + count(rate(c_total[10m] anchored) > 0)`, `max_over_time(rate(c_total[2m] smoothed)[10m:45s])`, `quantile_over_time(scalar(sum(g)), g[5m] smoothed)`,
	`g smoothed`, `c_total smoothed offset 2m`, `sum(g smoothed @ end())`, `-(g smoothed) + g smoothed`, `avg_over_time(({__name__=~"part_.*"} smoothed)[10m:30s])`, `timestamp(g smoothed)`,
	`start_timestamp(g @ end())`, `absent(start_timestamp(c_total * 2))`, `timestamp(c_total @ start() offset 5m)`, `sum(g) + on () group_left () sum(timestamp(g @ end()))`, `max_over_time(timestamp(g @ end() offset -3m)[10m:1m])`, `label_replace(rate(c_total[5m] @ end()), "__name__", "r", "", "")`,
	`sort_by_label(info(g), "__name__", "i")`, `sort_by_label(info(node, {data="d1"}), "__name__", "i")`, `sort_by_label(info(node, {missing=~".+"}), "__name__", "i")`, `sort_by_label(info(node, {__name__=~"(target|build)_info"}), "__name__", "i")`, `sort_by_label(info(node, {__name__!="target_info"}), "__name__", "i")`, `sort_by_label(info(rate(node[5m] offset 7m)), "__name__", "i")`, `sort_by_label(info(node @ end() offset 1m), "__name__", "i")`, `sort_by_label(info(node or node @ start()), "__name__", "i")`, `sort_by_label(info(max_over_time(node[10m:1m] offset 2m)), "__name__", "i")`, `sort_by_label(sum by (data) (info(node)), "__name__", "i")`, `sort_by_label(info({__name__=~"node|target_info"}), "__name__", "i")`, `sort_by_label(info(label_replace(vector(1), "instance", "2", "", "")), "__name__", "i")`, `sort_by_label(info(info(node, {__name__="build_info"})), "__name__", "i")`, `sort_by_label(max_over_time(info(node{instance="1"})[20m:1m]), "__name__", "i")`, `sort_by_label(info(-node) + on (instance) group_left (data) info(node), "__name__", "i")`, `sort_by_label(info(node smoothed), "__name__", "i")`, `sort_by_label(info(node, {__name__="h"}), "__name__", "i")`,
	`count(g * 2 > 0)`, `max by (ns) (rate(c_total[5m]) * 60)`, `sum by (ns) (rate(c_total[5m])) > 20`,
}

// histograms are queries of native histograms that this engine evaluates itself.
var histograms = []string{
	`h`, `h offset 3m`, `h @ end()`, `rate(h[5m])`, `increase(h[10m])`, `delta(h[5m])`, `irate(h[5m])`, `idelta(h[5m])`, `resets(h[20m])`, `changes(h[20m])`, `sum_over_time(h[5m])`, `avg_over_time(h[5m])`, `count_over_time(h[5m])`, `last_over_time(h[5m])`, `first_over_time(h[5m])`, `max_over_time(h[5m])`, `quantile_over_time(0.5, h[5m])`, `present_over_time(h[5m])`,
	`sum(h)`, `sum(rate(h[5m]))`, `avg by (kind) (h)`, `avg(rate(h[5m]))`, `min(h)`, `max by (kind) (h)`, `count(h)`, `group(h)`, `stddev(h)`, `topk(2, h)`, `bottomk(2, h)`, `quantile(0.5, h)`, `count({__name__=~"h|g"})`, `sum({__name__=~"h|g"})`, `sum by (kind) ({__name__=~"h|g"})`, `avg({__name__=~"h|g"})`, `max({__name__=~"h|g"})`, `topk(2, {__name__=~"h|g"})`, `quantile(0.5, {__name__=~"h|g"})`,
	`h * 2`, `2 * h`, `h / 3`, `3 / h`, `h + 1`, `1 - h`, `h > 3`, `h > bool 3`, `3 == bool h`, `-h`, `abs(h)`, `clamp(h, 0, 1)`, `sgn({__name__=~"h|g"})`, `label_replace(h, "a", "$1", "kind", "(.*)")`, `scalar(h)`, `timestamp(h)`, `absent(h)`, `absent_over_time(h[5m])`,
	`histogram_quantile(0.9, h)`, `histogram_quantile(0.9, sum(rate(h[5m])))`, `histogram_count(h)`, `histogram_sum(rate(h[5m]))`, `histogram_avg(h)`, `histogram_stddev(h)`, `histogram_stdvar(h)`, `histogram_fraction(0, 5, rate(h[5m]))`, `sum(histogram_count(rate(h[5m])))`, `histogram_count(increase(h[10m]))`, `histogram_quantile(0.9, {__name__=~"h|g"})`,
	`histogram_count(sum(h{kind="int"})) * sum(h{kind="int"})`, `histogram_sum(sum(rate(h{kind="int"}[5m]))) * on () histogram_quantile(0.9, sum(rate(h{kind="int"}[5m])))`, `histogram_count(h * 2 + h) + (h + h * 3)`, `histogram_count(sum(h{kind="int"})) / on () histogram_quantile(0.5, avg(h{kind="int"}))`, `histogram_avg(rate(h[5m]) / rate(h[5m])) or rate(h[5m]) * rate(h[5m])`,
	`h </ 3`, `h >/ 2`, `g >/ 2`, `{__name__=~"h|g"} </ 1`, `sort_by_label(count_values("v", h), "v")`,
	`sum(rate(h[5m])) / count(rate(h[5m]))`, `sum(-{__name__=~"h|g"}) * count(-{__name__=~"h|g"}) + avg(-{__name__=~"h|g"})`, `max(-{__name__=~"h|g"}) + min(-{__name__=~"h|g"}) + sum(-{__name__=~"h|g"})`, `(h - h offset 1m) + h`, `(h == h) * 2 + h`, `rate(h[5m]) / rate(h[5m])`, `h + h`, `h - h`, `h * h`, `h == h`, `h != h`, `h != bool h`, `h > bool h`, `h / h`, `h - ignoring (kind) group_left () g{i="1"}`, `h * ignoring (kind) group_left () count(g)`, `count(g) * ignoring (kind) group_right () h`, `h / ignoring (kind) group_left () count(g)`, `count(g) / ignoring (kind) group_right () h`, `h >/ ignoring (kind) group_left () count(g)`, `g </ g`, `h - h offset 17m`, `h + ignoring (kind) group_left () h{kind="custom"} offset 1m`, `h{kind="int"} + ignoring (kind) h{kind="custom"}`, `{__name__=~"h|mixed"} + on (kind) mixed`, `mixed + mixed`, `mixed * mixed offset 7m`, `mixed == mixed`, `rate(h[5m]) + rate(h[10m])`, `h + fill (3) (h @ 0)`, `histogram_count(h) + on (kind) h`,
	`limitk(1, h)`, `limitk(3, {__name__=~"h|mixed|g"})`, `limitk by (kind) (2, {__name__=~"h|mixed|g"})`, `limit_ratio(0.6, {__name__=~"h|mixed|g"})`, `limitk(2, mixed)`, `count(limitk(3, h))`, `limit_ratio(-Inf, irate(h[5m] @ end()) * scalar(nothing))`,
	`max_over_time(h[10m:1m])`, `sum_over_time(h[10m:1m])`, `rate(h[10m:90s])`, `avg_over_time(rate(h[5m])[10m:1m])`, `last_over_time(mixed[10m:1m])`, `rate({__name__=~"h|mixed"}[10m:1m] @ end())`, `count_over_time({__name__=~"h|mixed"}[7m:30s] offset 3m)`, `histogram_count(increase(h[20m:1m]))`, `quantile_over_time(0.3, mixed[10m:1m])`, `changes(mixed[9m:20s])`, `absent_over_time(h[5m:1m])`,
	`rate(h[5m] anchored)`, `increase({__name__=~"h|mixed"}[3m] smoothed)`, `delta(h[5m] smoothed)`, `changes({__name__=~"h|mixed"}[9m] anchored)`, `rate(mixed[5m] anchored @ end())`, `histogram_count(rate(h[5m] smoothed))`, `{__name__=~"h|mixed"} smoothed`, `h smoothed offset -20s @ end()`, `histogram_sum(h smoothed offset 90s)`, `rate((h smoothed)[10m:50s])`, `timestamp(h @ end())`, `sort_by_label(info(label_replace({__name__=~"h|mixed"}, "instance", "1", "", ""), {data=~".+"}), "__name__", "kind")`,
	`h and h`, `h or g`, `h unless g`, `g or h`, `{__name__=~".+"}`, `rate({__name__=~"h|mixed"}[5m])`, `mixed`, `sum_over_time(mixed[10m])`, `count_over_time(mixed[10m])`, `max_over_time(mixed[10m])`, `-mixed`, `sum(mixed)`, `mixed * 2`, `last_over_time(mixed[10m])`, `rate(mixed[10m])`,
}

// named are queries whose result depends on when metric names are removed.
var named = []string{
	`sum by (__name__) (rate({__name__=~"both_.*|c_total"}[5m]))`, `label_replace(rate({__name__=~"both_.*"}[5m]), "n", "$1", "__name__", "(.*)")`, `label_replace(rate({__name__=~"both_.*"}[5m]), "__name__", "r_$1", "__name__", "(.*)")`,
	`{__name__=~"both_.*"} * 2`, `-{__name__=~"both_.*"}`, `abs({__name__=~"both_.*"})`, `count by (__name__) ({__name__=~"both_.*"} > bool 3)`, `topk(1, {__name__=~"both_.*"} * 2)`, `quantile by (__name__) (0.5, {__name__=~"both_.*"} * 2)`, `max_over_time(rate({__name__=~"both_.*"}[5m])[10m:1m])`, `last_over_time(rate({__name__=~"both_.*"}[5m])[10m:1m])`,
	`both_a * on (x) both_b`, `both_a > bool on (x) both_b`, `(both_a > bool 3) or both_b`, `both_b or (both_a > bool 3)`, `sort({__name__=~"both_.*"} * 2)`, `limitk(1, {__name__=~"both_.*"} * 2)`, `timestamp({__name__=~"both_.*"})`, `sum(both_a) or -both_a`, `avg by (__name__) (both_a or both_b * 2)`, `(both_a * 2) @ end()`, `max({__name__=~"both_.*"} @ end() * 2)`, `label_join(-both_a, "__name__", "_", "x")`,
}

// partly are queries of which Prometheus' engine evaluates a part.
var partly = []string{
	`count(predict_linear(g[10m:1m] @ end(), 60))`, `sum(g) + on () group_left () max(predict_linear(g[10m:1m] @ start(), 60))`, `count(g) + count(predict_linear(g[10m:1m] @ end(), 60) > 0)`,
}

// unknown are queries that Prometheus' engine evaluates.
var unknown = []string{`predict_linear(g[10m:1m] @ start(), 60)`, `label_replace({__name__=~"g|c_total",i="1"} @ end(), "__name__", "x", "", "")`, `c_total[5m]`, `max_over_time({__name__=~"part_.*"}[3h:1m])`}

var spans = []struct {
	start, end int64
	step       time.Duration
}{
	{beginMS + 4*hourMS + 10*60_000, beginMS + 5*hourMS, 0},             // head
	{beginMS + 2*hourMS + 30*60_000, beginMS + 3*hourMS, 0},             // block
	{beginMS + 4*hourMS + 4*60_000, 0, 0},                               // both
	{beginMS - hourMS, beginMS + 6*hourMS, 5 * time.Minute},             // before, everything, after
	{beginMS + 4*hourMS + 70*60_000/2, beginMS + 5*hourMS, time.Minute}, // head
	{beginMS + hourMS, beginMS + 3*hourMS + 1, 97 * time.Second},        // blocks
	{beginMS + hourMS, beginMS + hourMS, time.Second},                   // one step
	{beginMS + 3*hourMS + 3500_000, beginMS + 4*hourMS + 200_000, 2 * time.Second},
}

// compare checks that both engines return the same. Prometheus adds the series of some
// operands in random order, so it gets several tries.
func compare(t *testing.T, r request, from, oracleFrom storage.Queryable, maxSamples int) string {
	t.Helper()
	return compareWith(t, r, from, oracleFrom, engineOpts(maxSamples))
}

func compareWith(t *testing.T, r request, from, oracleFrom storage.Queryable, opts promql.EngineOpts) string {
	t.Helper()
	oracle, engine := enginesOf(opts)
	got, by := r.run(t, engine, from)
	want := ""
	for range 10 {
		if want, _ = r.run(t, oracle, oracleFrom); got == want {
			return by
		}
	}
	t.Errorf("%s by %s: %s", r, by, difference(got, want))
	return by
}

func eachSpan(queries []string, do func(request)) {
	for at, query := range queries {
		for i, s := range spans {
			if invariant.Enabled && (at+i)%4 != 0 {
				continue // with the race detector a quarter of them takes as long as all without it
			}
			do(request{query: query, start: s.start, end: max(s.start, s.end), step: s.step, perStep: i%2 == 0})
		}
	}
}

func TestEngine_ReturnsWhatPrometheusDoes(t *testing.T) {
	for name, late := range map[string]bool{"in order": false, "out of order": true} {
		t.Run(name, func(t *testing.T) {
			store := newWorld(t, late)
			for source, from := range map[string]storage.Queryable{"chunks": store, "samples": samplesOnly{store}} {
				t.Run(source, func(t *testing.T) {
					eachSpan(slices.Concat(known, histograms, partly), func(r request) {
						if by := compare(t, r, from, store, 50_000_000); by != "columns" {
							t.Errorf("%s evaluated by %q", r, by)
						}
					})
					eachSpan(unknown, func(r request) { compare(t, r, from, store, 50_000_000) })
				})
			}
		})
	}
}

func TestEngine_WithPrometheusFeatures(t *testing.T) {
	store := newWorld(t, false)
	for name, feature := range map[string]func(*promql.EngineOpts){
		"delayed name removal": func(o *promql.EngineOpts) { o.EnableDelayedNameRemoval = true },
		"start timestamps":     func(o *promql.EngineOpts) { o.UseStartTimestamps = true },
		"type and unit labels": func(o *promql.EngineOpts) { o.EnableTypeAndUnitLabels = true },
	} {
		t.Run(name, func(t *testing.T) {
			opts := engineOpts(50_000_000)
			feature(&opts)
			own, all := 0, 0
			for i, query := range slices.Concat(known, histograms, partly, unknown, named) {
				s := spans[i%len(spans)]
				for _, step := range []time.Duration{0, max(s.step, 7*time.Minute)} {
					all++
					if compareWith(t, request{query: query, start: s.start, end: max(s.start, s.end), step: step}, store, store, opts) == "columns" {
						own++
					}
				}
			}
			if own < all*8/10 {
				t.Errorf("%d of %d queries are evaluated by columns", own, all)
			}
		})
	}
}

func TestEngine_FailsAtTheSameNumberOfSamples(t *testing.T) {
	store := newWorld(t, false)
	for _, query := range slices.Concat(known, histograms, partly) {
		r := request{query: query, start: beginMS + hourMS, end: beginMS + 2*hourMS, step: 2 * time.Minute}
		oracle, _ := newEngines(50_000_000)
		q, err := r.open(oracle, store)
		if err != nil {
			t.Fatal(err)
		}
		res := q.Exec(t.Context())
		peak := q.Stats().Samples.PeakSamples
		q.Close()
		if res.Err != nil || peak == 0 {
			continue
		}
		least := 0
		for _, limit := range []int{1, peak / 3, peak / 2, peak - 1, peak} {
			compare(t, r, store, store, limit)
			if _, engine := newEngines(max(1, limit)); limit > 0 {
				if result, _ := r.run(t, engine, store); strings.Contains(result, "too many samples") {
					least = limit
				}
			}
		}
		if least != peak-1 && peak > 1 {
			t.Logf("%s: peak %d, fails up to %d", query, peak, least)
		}
	}
}

// Prometheus returns the series of topk of several steps in the order of a map. The iteration of one of eight or fewer series begins
// anywhere, and goes on in the order in which they were chosen: that order decides the last bit of what is computed from them.
func TestEngine_OrdersChosenSeriesAsPrometheusMay(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	for i, v := range []float64{0.1, 0.2, 0.3} {
		app := store.Appender(t.Context())
		for n := range int64(10) {
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "x", "i", fmt.Sprint(i)), beginMS+n*60_000, v); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	oracle, engine := newEngines(1000)
	for _, query := range []string{`stddev(topk(3, x))`, `stddev(bottomk(3, -x))`, `stddev(topk(3, x > 0.1 or x < 0.3))`} {
		r := request{query: query, start: beginMS, end: beginMS + 5*60_000, step: time.Minute}
		got, _ := r.run(t, engine, store)
		possible := map[string]bool{}
		for range 100 {
			want, _ := r.run(t, oracle, store)
			possible[want] = true
		}
		if !possible[got] {
			t.Errorf("%s is none of the %d results of Prometheus: %s", query, len(possible), got)
		}
	}
}
