package scrape

import (
	// The discoveries of every build, besides static_configs, which is part of package
	// discovery. Each registers the name of its section on import.
	_ "github.com/prometheus/prometheus/discovery/consul"
	_ "github.com/prometheus/prometheus/discovery/digitalocean"
	_ "github.com/prometheus/prometheus/discovery/dns"
	_ "github.com/prometheus/prometheus/discovery/eureka"
	_ "github.com/prometheus/prometheus/discovery/file"
	_ "github.com/prometheus/prometheus/discovery/hetzner"
	_ "github.com/prometheus/prometheus/discovery/http"
	_ "github.com/prometheus/prometheus/discovery/kubernetes"
	_ "github.com/prometheus/prometheus/discovery/linode"
	_ "github.com/prometheus/prometheus/discovery/marathon"
	_ "github.com/prometheus/prometheus/discovery/moby"
	_ "github.com/prometheus/prometheus/discovery/nomad"
	_ "github.com/prometheus/prometheus/discovery/openstack"
	_ "github.com/prometheus/prometheus/discovery/ovhcloud"
	_ "github.com/prometheus/prometheus/discovery/puppetdb"
	_ "github.com/prometheus/prometheus/discovery/scaleway"
	_ "github.com/prometheus/prometheus/discovery/stackit"
	_ "github.com/prometheus/prometheus/discovery/triton"
	_ "github.com/prometheus/prometheus/discovery/uyuni"
	_ "github.com/prometheus/prometheus/discovery/vultr"
	_ "github.com/prometheus/prometheus/discovery/xds"
	_ "github.com/prometheus/prometheus/discovery/zookeeper"
)

// cloudSections are the sections of the discoveries that need the build tag clouds.
var cloudSections = []string{
	"aws_sd_configs", "ec2_sd_configs", "ecs_sd_configs", "elasticache_sd_configs", "lightsail_sd_configs",
	"msk_sd_configs", "rds_sd_configs",
	"azure_sd_configs", "gce_sd_configs", "ionos_sd_configs", "oci_sd_configs", "outscale_sd_configs",
}
