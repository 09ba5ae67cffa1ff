package main

import (
	"fmt"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/bucket"
)

// objstoreFlags are Thanos' flags of object storage and of uploads to it.
type objstoreFlags struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore"`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore"`

	UploadCompacted bool   `name:"shipper.upload-compacted" negatable:""`
	HashFunc        string `name:"hash-func" enum:",SHA256" default:""`
	StateFile       string `name:"shipper.meta-file-name" default:"thanos.shipper.json"`
	Concurrency     int    `name:"shipper.upload-concurrency" default:"0"`
	IgnoreBlockSize bool   `name:"shipper.ignore-unequal-block-size" hidden:""`
	OutOfOrder      bool   `name:"shipper.allow-out-of-order-uploads" hidden:""`
	SkipCorrupted   bool   `name:"shipper.skip-corrupted-blocks" hidden:""`
}

func (f objstoreFlags) options() (app.ShippingOptions, error) {
	config, err := pathOrContent("objstore.config", f.Config, f.ConfigFile)
	if err != nil {
		return app.ShippingOptions{}, err
	}
	if config == "" && f.ConfigFile != "" {
		return app.ShippingOptions{}, fmt.Errorf("--objstore.config-file: %s is empty", f.ConfigFile)
	}
	return app.ShippingOptions{
		Bucket:          config,
		IgnoreBlockSize: f.IgnoreBlockSize,
		Shipper: bucket.ShipOptions{
			UploadCompacted: f.UploadCompacted, AllowOutOfOrder: f.OutOfOrder, SkipCorrupted: f.SkipCorrupted,
			Hashes: f.HashFunc != "", StateFile: f.StateFile, Concurrency: f.Concurrency,
		},
	}, nil
}
