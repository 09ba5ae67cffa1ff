package main

import (
	"context"
	"errors"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/compact"
)

// profilesCommand has the commands about profiles that are not part of a server.
type profilesCommand struct {
	Compact profilesCompactCommand `cmd:"" help:"Compact the profile blocks of a bucket, and delete replaced and old ones."`
}

// profilesCompactCommand has the flags of `ferula profiles compact`. Most of them have the names of similar flags of
// `thanos compact`.
type profilesCompactCommand struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore"`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore"`
	DataDir    string `name:"data-dir" default:"./data"`

	Wait         bool     `name:"wait" short:"w"`
	WaitInterval duration `name:"wait-interval" min:"1s" default:"5m"`

	Retention   duration `name:"retention" default:"0d"`
	DeleteDelay duration `name:"delete-delay" default:"48h"`
	Consistency duration `name:"consistency-delay" min:"25h" default:"30h"`
	BlockSize   size     `name:"compact.block-max-size" min:"1MB" default:"512MB"`

	Process processFlags `embed:""`
}

func (c *profilesCompactCommand) Validate() error {
	if c.Process.TracingConfig != "" || c.Process.TracingConfigFile != "" {
		return errors.New("--tracing.config and --tracing.config-file are not supported: " +
			"ferula profiles compact sends no spans")
	}
	return nil
}

func (c *profilesCompactCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags, next *role) error {
	return runRole(ctx, k, next, &c.Process, ignored, c.options, app.NewProfilesCompact)
}

func (c *profilesCompactCommand) options() (app.ProfilesCompactOptions, error) {
	var content contents
	return app.ProfilesCompactOptions{
		Web: c.Process.web(), Bucket: content.bucket(c.Config, c.ConfigFile), Wait: c.Wait,
		Interval: time.Duration(c.WaitInterval), Logger: c.Process.logger,
		Compact: compact.Options{
			Dir: c.DataDir, Consistency: time.Duration(c.Consistency), DeleteDelay: zeroIsNone(c.DeleteDelay),
			Retention: time.Duration(c.Retention), BlockBytes: int64(c.BlockSize),
		},
	}, content.err()
}
