package main

import (
	"fmt"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/bucket"
)

// objstoreFlags are Thanos' flags of object storage and of uploads to it.
type objstoreFlags struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore" help:"Configuration of the object storage to upload blocks to, in Thanos' YAML format, type S3, FILESYSTEM, GCS or AZURE."`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore" help:"File with the configuration of the object storage, in Thanos' YAML format."`

	UploadCompacted bool   `name:"shipper.upload-compacted" negatable:"" help:"Also upload compacted blocks: for a server whose blocks were compacted before they could be uploaded."`
	HashFunc        string `name:"hash-func" enum:",SHA256" default:"" help:"Hash function for the files of a block in meta.json: \"\" or SHA256."`
	StateFile       string `name:"shipper.meta-file-name" default:"thanos.shipper.json" help:"File in the data directory that lists the uploaded blocks."`
	Concurrency     int    `name:"shipper.upload-concurrency" default:"0" help:"Number of files of a block to upload concurrently. 0 means 1."`
	IgnoreBlockSize bool   `name:"shipper.ignore-unequal-block-size" hidden:"" help:"Upload blocks although local compaction is enabled. A block may be compacted away before its upload."`
	OutOfOrder      bool   `name:"shipper.allow-out-of-order-uploads" hidden:"" help:"Upload later blocks although the upload of an earlier one fails."`
	SkipCorrupted   bool   `name:"shipper.skip-corrupted-blocks" hidden:"" help:"Upload the other blocks although one is corrupted."`
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
