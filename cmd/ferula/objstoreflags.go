package main

import (
	"fmt"

	"github.com/ferula-io/ferula/internal/role"
	"github.com/ferula-io/ferula/internal/store/bucket"
)

// objstoreFlags are Thanos' flags about object storage and shipping to it.
type objstoreFlags struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore" help:"Object storage to ship blocks to, type S3 or FILESYSTEM, in Thanos' format."`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore" help:"File that says to which object storage blocks are shipped."`

	UploadCompacted bool   `name:"shipper.upload-compacted" negatable:"" help:"Ship compacted blocks too, once, when a server joins whose blocks were compacted."`
	HashFunc        string `name:"hash-func" enum:",SHA256" default:"" help:"Hash of each file to put into a block's meta.json: \"\" or SHA256."`
	StateFile       string `name:"shipper.meta-file-name" default:"thanos.shipper.json" help:"File in the data folder that lists the shipped blocks."`
	Concurrency     int    `name:"shipper.upload-concurrency" default:"0" help:"Files of a block uploaded at once; 0 is 1."`
	IgnoreBlockSize bool   `name:"shipper.ignore-unequal-block-size" hidden:"" help:"Ship although blocks are compacted locally; one may be compacted away before it is shipped."`
	OutOfOrder      bool   `name:"shipper.allow-out-of-order-uploads" hidden:"" help:"Ship later blocks while an earlier one fails."`
	SkipCorrupted   bool   `name:"shipper.skip-corrupted-blocks" hidden:"" help:"Ship other blocks while one cannot be read."`
}

func (f objstoreFlags) options() (role.ShippingOptions, error) {
	text, err := pathOrContent("objstore.config", f.Config, f.ConfigFile)
	if err != nil {
		return role.ShippingOptions{}, err
	}
	if text == "" && f.ConfigFile != "" {
		return role.ShippingOptions{}, fmt.Errorf("--objstore.config-file: %s is empty", f.ConfigFile)
	}
	return role.ShippingOptions{
		Bucket:          text,
		IgnoreBlockSize: f.IgnoreBlockSize,
		Shipper: bucket.ShipOptions{
			UploadCompacted: f.UploadCompacted, AllowOutOfOrder: f.OutOfOrder, SkipCorrupted: f.SkipCorrupted,
			Hashes: f.HashFunc != "", StateFile: f.StateFile, Concurrency: f.Concurrency,
		},
	}, nil
}
